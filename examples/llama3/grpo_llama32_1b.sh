#!/usr/bin/env bash
# GRPO of Llama 3.2 1B with rule rewards on one node of 8 GPUs. RAY_ADDRESS joins a running cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

CHECKPOINT_ARGS=(
    actor_rollout_ref.actor_rollout.load="${MCORE_MODEL:-ckpt/llama32_1b_mcore}"
    actor_rollout_ref.ref.load="${MCORE_MODEL:-ckpt/llama32_1b_mcore}"
    training.run_dir="${RUN_DIR:-runs/grpo_llama32_1b}"
)

ROLLOUT_ARGS=(
    actor_rollout_ref.actor_rollout.data_path="${DATA:-dataset/rl/train}"
    actor_rollout_ref.actor_rollout.n_samples_per_prompt=8
)

PARALLEL_ARGS=(
    actor_rollout_ref.actor_rollout.tensor_model_parallel_size=1
    actor_rollout_ref.ref.tensor_model_parallel_size=1
    "resource_pool.actor_rollout=[8]"
)

"$PYTHON" posttrain_gpt.py --config-name grpo_trainer_llama32_1b \
    "${CHECKPOINT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${PARALLEL_ARGS[@]}" "$@"
