#!/usr/bin/env bash
# Llama 3.2 1B: Hugging Face to a torch_dist checkpoint, which loads at any TP x PP.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

SOURCE_ARGS=(
    --load-model-type hf
    --load-dir "${HF_MODEL:-models/Llama-3.2-1B-Instruct}"
    --model-type-hf llama
)

TARGET_ARGS=(
    --save-model-type mcore
    --save-dir "${MCORE_MODEL:-ckpt/llama32_1b_mcore}"
)

"$PYTHON" convert_ckpt.py "${SOURCE_ARGS[@]}" "${TARGET_ARGS[@]}"
