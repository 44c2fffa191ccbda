#!/usr/bin/env bash
# Reward model of Llama 3 8B from preference pairs on one node of 8 GPUs. RAY_ADDRESS joins a running cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

CHECKPOINT_ARGS=(
    training.load="${REWARD_MODEL:-ckpt/llama3_8b_reward_mcore}"
    training.run_dir="${RUN_DIR:-runs/orm_llama3_8b}"
)

DATA_ARGS=(
    training.data_path="${DATA:-dataset/pairs/train}"
    training.eval_data_path="${EVAL_DATA:-dataset/pairs/heldout}"
)

PARALLEL_ARGS=(
    training.tensor_model_parallel_size=4
    training.pipeline_model_parallel_size=1
    "resource_pool.actor_rollout=[8]"
)

"$PYTHON" posttrain_gpt.py --config-name orm_trainer_llama3_8b \
    "${CHECKPOINT_ARGS[@]}" "${DATA_ARGS[@]}" "${PARALLEL_ARGS[@]}" "$@"
