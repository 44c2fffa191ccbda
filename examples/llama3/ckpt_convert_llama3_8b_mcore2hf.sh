#!/usr/bin/env bash
# Llama 3 8B: the latest trained checkpoint back to Hugging Face.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

SOURCE_ARGS=(
    --load-model-type mcore
    --load-dir "${MCORE_MODEL:-runs/grpo_llama3_8b/checkpoints/actor}"
)

TARGET_ARGS=(
    --save-model-type hf
    --save-dir "${HF_OUTPUT:-models/llama3_8b_grpo}"
    --max-shard-size 5GB
)

"$PYTHON" convert_ckpt.py "${SOURCE_ARGS[@]}" "${TARGET_ARGS[@]}"
