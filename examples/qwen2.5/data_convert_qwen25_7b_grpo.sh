#!/usr/bin/env bash
# Prompts with a solution column to indexed data, for Qwen2.5 7B.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

INPUT_ARGS=(
    --input "${INPUT:-dataset/rl/train.jsonl}"
    --handler-name PPOAlpacaStyleInstructionHandler
    --map-keys '{"prompt": "question"}'   # your column; the others, such as solution, are kept for the rewards
)

TOKENIZER_ARGS=(
    --tokenizer-name-or-path "${HF_MODEL:-models/Qwen2.5-7B-Instruct}"
    --prompt-type "${PROMPT_TYPE:-qwen_r1}"   # asks for the tags that the reward format wants; for PPO: qwen
    --seq-length 1024
)

OUTPUT_ARGS=(
    --output-prefix "${OUTPUT:-dataset/rl/train}"
    --workers 8
    --n-subs 8
    --log-interval 10000
)

"$PYTHON" preprocess_data.py "${INPUT_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${OUTPUT_ARGS[@]}"
