#!/usr/bin/env bash
# Llama 3 8B: a scalar head in place of the output layer, on the SFT model, to start a reward model from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

SOURCE_ARGS=(
    --load-model-type mcore
    --load-dir "${MCORE_MODEL:-ckpt/llama3_8b_sft_mcore}"
)

TARGET_ARGS=(
    --save-model-type mcore
    --save-dir "${REWARD_MODEL:-ckpt/llama3_8b_reward_mcore}"
    --head reward
    --head-init normal
    --seed 0
)

"$PYTHON" convert_ckpt.py "${SOURCE_ARGS[@]}" "${TARGET_ARGS[@]}"
