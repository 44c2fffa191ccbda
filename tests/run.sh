#!/usr/bin/env bash
# Installs what the tests need into .venv, then lints, type-checks and tests.
# Usage: bash tests/run.sh [--all] [pytest arguments]     --all adds the slow tests and the comparisons with peers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

selection="not slow and not peer"
extras="test"
if [ "${1:-}" = --all ]; then
    shift
    selection=""
    extras="test,peers"
fi
use_environment "$extras"

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
"$(dirname "$PYTHON")/lint-imports"
if [ $# -gt 0 ]; then
    exec "$PYTHON" -m pytest -m "$selection" "$@"
fi
# Apart: ranks of other tests are forked from the test process, and a process in which a whole run took place has
# threads that a fork does not survive.
"$PYTHON" -m pytest -m "$selection" --ignore=tests/e2e
"$PYTHON" -m pytest -m "$selection" tests/e2e
