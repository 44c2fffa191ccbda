#!/usr/bin/env bash
# The PPO quickstart: makes .venv, then trains a reward model and, with it, a small model by PPO on four ranks.
# Usage: bash examples/quickstart/ppo.sh [--seed N] [--fast] [--run-dir DIR]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
use_environment ""
exec "$PYTHON" examples/quickstart/ppo.py "$@"
