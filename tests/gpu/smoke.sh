#!/usr/bin/env bash
# One GPU, no network, under 8 minutes: parity with Hugging Face, one SFT and one GRPO run through the inline executor,
# tokens per second and memory. Needs torch, transformers, megatron-core, pydantic, pyarrow and psutil; nothing is installed.
# Usage: bash tests/gpu/smoke.sh [--size tiny|small] [--allow-cpu]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONPATH="$PWD"
exec timeout 480 "${MINDLLM_PYTHON:-python3}" tests/gpu/smoke.py "$@"
