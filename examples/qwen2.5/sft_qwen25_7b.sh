#!/usr/bin/env bash
# Supervised fine-tuning of Qwen2.5 7B on one node of 8 GPUs. RAY_ADDRESS joins a running cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

CHECKPOINT_ARGS=(
    training.load="${MCORE_MODEL:-ckpt/qwen25_7b_mcore}"
    training.run_dir="${RUN_DIR:-runs/sft_qwen25_7b}"
)

DATA_ARGS=(
    training.data_path="${DATA:-dataset/sft/train}"
)

PARALLEL_ARGS=(
    training.tensor_model_parallel_size=4
    training.pipeline_model_parallel_size=1
    "resource_pool.actor_rollout=[8]"
)

"$PYTHON" posttrain_gpt.py --config-name sft_trainer_qwen25_7b \
    "${CHECKPOINT_ARGS[@]}" "${DATA_ARGS[@]}" "${PARALLEL_ARGS[@]}" "$@"
