#!/usr/bin/env bash
# PPO of Llama 3 8B with a critic and a reward model on 16 GPUs, e.g. two nodes of 8. RAY_ADDRESS joins a running cluster.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/environment.sh
find_python

CHECKPOINT_ARGS=(
    actor_rollout_ref.actor_rollout.load="${MCORE_MODEL:-ckpt/llama3_8b_sft_mcore}"
    actor_rollout_ref.ref.load="${MCORE_MODEL:-ckpt/llama3_8b_sft_mcore}"
    critic.load="${REWARD_MODEL:-runs/orm_llama3_8b/checkpoints/actor}"
    reward.load="${REWARD_MODEL:-runs/orm_llama3_8b/checkpoints/actor}"
    training.run_dir="${RUN_DIR:-runs/ppo_llama3_8b}"
)

ROLLOUT_ARGS=(
    actor_rollout_ref.actor_rollout.data_path="${DATA:-dataset/rl/train}"
    actor_rollout_ref.actor_rollout.n_samples_per_prompt=1
)

PARALLEL_ARGS=(
    actor_rollout_ref.actor_rollout.tensor_model_parallel_size=4
    actor_rollout_ref.ref.tensor_model_parallel_size=4
    critic.tensor_model_parallel_size=4
    reward.tensor_model_parallel_size=4
    "resource_pool.actor_rollout=[8]"
    "resource_pool.critic=[4]"
    "resource_pool.ref=[4]"
    resource_pool.reward=ref
)

"$PYTHON" posttrain_gpt.py --config-name ppo_trainer_llama3_8b \
    "${CHECKPOINT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${PARALLEL_ARGS[@]}" "$@"
