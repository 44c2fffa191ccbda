#!/usr/bin/env bash
# PPO of Llama 3.2 1B with a critic and a reward model on one node of 8 GPUs. RAY_ADDRESS joins a running cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

CHECKPOINT_ARGS=(
    actor_rollout_ref.actor_rollout.load="${MCORE_MODEL:-ckpt/llama32_1b_sft_mcore}"
    actor_rollout_ref.ref.load="${MCORE_MODEL:-ckpt/llama32_1b_sft_mcore}"
    critic.load="${REWARD_MODEL:-runs/orm_llama32_1b/checkpoints/actor}"
    reward.load="${REWARD_MODEL:-runs/orm_llama32_1b/checkpoints/actor}"
    training.run_dir="${RUN_DIR:-runs/ppo_llama32_1b}"
)

ROLLOUT_ARGS=(
    actor_rollout_ref.actor_rollout.data_path="${DATA:-dataset/rl/train}"
    actor_rollout_ref.actor_rollout.n_samples_per_prompt=1
)

PARALLEL_ARGS=(
    actor_rollout_ref.actor_rollout.tensor_model_parallel_size=2
    actor_rollout_ref.ref.tensor_model_parallel_size=2
    critic.tensor_model_parallel_size=2
    reward.tensor_model_parallel_size=2
    "resource_pool.actor_rollout=[4]"
    "resource_pool.critic=[2]"
    "resource_pool.ref=[2]"
    resource_pool.reward=ref
)

"$PYTHON" posttrain_gpt.py --config-name ppo_trainer_llama32_1b \
    "${CHECKPOINT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${PARALLEL_ARGS[@]}" "$@"
