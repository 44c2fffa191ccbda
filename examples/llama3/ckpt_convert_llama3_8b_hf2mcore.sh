#!/usr/bin/env bash
# Llama 3 8B: Hugging Face to a torch_dist checkpoint, which loads at any TP x PP.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

SOURCE_ARGS=(
    --load-model-type hf
    --load-dir "${HF_MODEL:-models/Meta-Llama-3-8B-Instruct}"
    --model-type-hf llama
)

TARGET_ARGS=(
    --save-model-type mcore
    --save-dir "${MCORE_MODEL:-ckpt/llama3_8b_mcore}"
)

"$PYTHON" convert_ckpt.py "${SOURCE_ARGS[@]}" "${TARGET_ARGS[@]}"
