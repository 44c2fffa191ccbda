#!/usr/bin/env bash
# Demonstrations (instruction, input, output) to indexed data, for Qwen2.5 7B.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

INPUT_ARGS=(
    --input "${INPUT:-dataset/sft/train.jsonl}"
    --handler-name AlpacaStyleInstructionHandler
)

TOKENIZER_ARGS=(
    --tokenizer-name-or-path "${HF_MODEL:-models/Qwen2.5-7B-Instruct}"
    --prompt-type qwen
    --seq-length 4096
)

OUTPUT_ARGS=(
    --output-prefix "${OUTPUT:-dataset/sft/train}"
    --workers 8
    --n-subs 8
    --log-interval 10000
)

"$PYTHON" preprocess_data.py "${INPUT_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${OUTPUT_ARGS[@]}"
