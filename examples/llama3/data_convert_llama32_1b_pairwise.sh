#!/usr/bin/env bash
# Preference pairs (instruction, input, chosen, rejected) to indexed data, for Llama 3.2 1B.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

INPUT_ARGS=(
    --input "${INPUT:-dataset/pairs/train.jsonl}"
    --handler-name AlpacaStylePairwiseHandler
)

TOKENIZER_ARGS=(
    --tokenizer-name-or-path "${HF_MODEL:-models/Llama-3.2-1B-Instruct}"
    --prompt-type llama3
    --seq-length 2048
)

OUTPUT_ARGS=(
    --output-prefix "${OUTPUT:-dataset/pairs/train}"
    --workers 8
    --n-subs 8
    --log-interval 10000
)

"$PYTHON" preprocess_data.py "${INPUT_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${OUTPUT_ARGS[@]}"
