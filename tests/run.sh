#!/usr/bin/env bash
# Installs what the tests need into .venv, then lints, type-checks and tests. One line per part says how long it took.
# Usage: bash tests/run.sh [--all | --long] [--coverage] [pytest arguments]
#   (nothing)    the quick tests
#   --all        and the slow ones and the comparisons with other toolkits: what CI runs
#   --long       instead, those that take minutes each: learning, real weights, random kills
#   --coverage   print line coverage at the end
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

selection="not slow and not long and not peer"
extras="test"
coverage=""
while [ $# -gt 0 ]; do
    case "$1" in
        --all) selection="not long" extras="test,peers" ;;
        --long) selection="long" extras="test,peers" ;;
        --coverage) coverage="-m coverage run" ;;
        *) break ;;
    esac
    shift
done
use_environment "$extras"

# A part that fails does not keep the others from running.
failed=0
timed() {
    local name="$1" start=$SECONDS
    shift
    "$@" || failed=1
    echo "$name: $((SECONDS - start)) s"
}

# Exit status 5 says that a part has no test of this tier.
run_pytest() {
    # shellcheck disable=SC2086  # no word when it is empty
    "$PYTHON" $coverage -m pytest -m "$selection" "$@" || [ $? -eq 5 ]
}

lint() {
    "$PYTHON" -m ruff check . &&
        "$PYTHON" -m ruff format --check . &&
        "$PYTHON" -m mypy &&
        "$(dirname "$PYTHON")/lint-imports"
}

[ -z "$coverage" ] || "$PYTHON" -m coverage erase
timed lint lint
if [ $# -gt 0 ]; then
    timed tests run_pytest "$@"
else
    # Each file of the first part is run by one of two processes. The others start ranks or whole programs, which use both
    # cores; tests/e2e has a process of its own, since a run leaves threads that a fork of ranks does not survive.
    timed "tests/unit" run_pytest tests/unit -n 2 --dist loadfile
    timed "tests/distributed, tests/peers, tests/gpu" run_pytest tests/distributed tests/peers tests/gpu
    timed "tests/e2e" run_pytest tests/e2e
fi
if [ -n "$coverage" ]; then
    "$PYTHON" -m coverage combine --quiet
    "$PYTHON" -m coverage report --skip-covered --sort=miss
fi
echo "all parts: $SECONDS s"
exit $failed
