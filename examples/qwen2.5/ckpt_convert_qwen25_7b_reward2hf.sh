#!/usr/bin/env bash
# Qwen2.5 7B: the trained reward model to Hugging Face's sequence classification with one label.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

SOURCE_ARGS=(
    --load-model-type mcore
    --load-dir "${MCORE_MODEL:-runs/orm_qwen25_7b/checkpoints/actor}"
)

TARGET_ARGS=(
    --save-model-type hf
    --save-dir "${HF_OUTPUT:-models/qwen25_7b_reward}"
    --max-shard-size 5GB
)

"$PYTHON" convert_ckpt.py "${SOURCE_ARGS[@]}" "${TARGET_ARGS[@]}"
