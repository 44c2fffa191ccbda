#!/usr/bin/env bash
# One GPU, no network, under 8 minutes: parity with Hugging Face, an SFT and a GRPO run through the inline executor, the
# latter resumed; speeds and memory. Needs torch (2.6 or later), transformers, megatron-core, pydantic, pyarrow and psutil,
# installed or on PYTHONPATH; installs nothing.
# Usage: bash tests/gpu/smoke.sh [--size tiny|small] [--allow-cpu]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 480 "${MINDLLM_PYTHON:-python3}" tests/gpu/smoke.py "$@"
