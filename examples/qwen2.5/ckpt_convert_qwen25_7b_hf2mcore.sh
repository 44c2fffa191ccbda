#!/usr/bin/env bash
# Qwen2.5 7B: Hugging Face to a torch_dist checkpoint, which loads at any TP x PP.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

SOURCE_ARGS=(
    --load-model-type hf
    --load-dir "${HF_MODEL:-models/Qwen2.5-7B-Instruct}"
    --model-type-hf qwen2
)

TARGET_ARGS=(
    --save-model-type mcore
    --save-dir "${MCORE_MODEL:-ckpt/qwen25_7b_mcore}"
)

"$PYTHON" convert_ckpt.py "${SOURCE_ARGS[@]}" "${TARGET_ARGS[@]}"
