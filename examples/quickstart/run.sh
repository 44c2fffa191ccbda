#!/usr/bin/env bash
# The quickstart: makes .venv, then runs SFT and sharded GRPO on a small model and prints what it learned.
# Usage: bash examples/quickstart/run.sh [--layout tp2|pp2|dp2] [--seed N] [--fast] [--run-dir DIR]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
use_environment ""
exec "$PYTHON" examples/quickstart/quickstart.py "$@"
