"""Advantages and mini-batches of one iteration."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mindllm.config import RunConfig, build_config
from mindllm.data.sequences import Sequences
from mindllm.errors import UserError
from mindllm.stages.grpo import add_advantages
from mindllm.stages.policy_update import policy_steps, update_policy
from mindllm.stages.session import mean_metrics
from mindllm.workers.trained import UpdateResult


def config(algorithm: dict[str, Any] | None = None, **actor: Any) -> RunConfig:
    keys = {"load": "ckpt", "data_path": "data", "lr": 1e-3, "n_samples_per_prompt": 2, "max_prompt_length": 8, **actor}
    training = {"stage": "grpo", "train_iters": 2, "global_batch_size": 3, "seq_length": 16}
    return build_config(
        {
            "training": training,
            "actor_rollout_ref": {"actor_rollout": keys},
            "reward": {"functions": ["accuracy"]},
            "algorithm": algorithm or {},
        }
    )


def batch() -> Sequences:
    """Three prompts, two responses each."""
    sequences = Sequences.from_lists([[1]] * 6, [[2, 3], [2], [2], [2, 3, 4], [], [5]])
    sequences.prompt_index = torch.tensor([0, 0, 4, 4, 9, 9])
    sequences.rewards = torch.tensor([1.0, 0.0, 0.5, 0.5, 0.0, 1.0], dtype=torch.float64)
    return sequences


def test_advantages_compare_within_a_group_and_reach_every_token():
    sequences = batch()
    metrics = add_advantages(sequences, config({"adv_estimator": "group_mean"}))
    assert sequences.advantages.tolist() == [0.5, 0.5, -0.5, 0, 0, 0, 0, 0.5]
    assert sequences.loss_mask.all() and len(sequences.loss_mask) == 8
    assert metrics["critic/rewards/mean"] == pytest.approx(0.5)
    assert metrics["critic/advantages/zero_fraction"] == pytest.approx(1 / 3)


def test_the_kl_penalty_of_a_sequence_is_taken_from_its_reward():
    sequences = batch()
    sequences.old_logprobs = torch.full((8,), -1.0)
    sequences.ref_logprobs = torch.full((8,), -1.5)
    settings = {"adv_estimator": "group_mean", "use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.2}}
    metrics = add_advantages(sequences, config(settings))
    # k1 is old - ref = 0.5 a token: rewards 1 - 0.2 and 0 - 0.1 in the first group
    assert sequences.advantages[:3].tolist() == pytest.approx([0.45, 0.45, -0.45])
    assert metrics["critic/kl/mean"] == pytest.approx(0.5 * 5 / 6)  # per token; one of the six responses is empty
    assert metrics["critic/rewards/mean"] == pytest.approx(0.5 - 0.2 * 0.5 * 8 / 6)


def test_large_rewards_are_compared_and_advantages_beyond_fp32_are_refused_in_a_sentence():
    sequences = batch()
    sequences.rewards = torch.tensor([1.5e308, -1.5e308, 1.5e308, 1.5e308, torch.nan, 1.0], dtype=torch.float64)
    metrics = add_advantages(sequences, config())
    assert sequences.advantages.tolist() == pytest.approx([0.5**0.5] * 2 + [-(0.5**0.5)] + [0] * 5)
    assert metrics["critic/rewards/mean"] == pytest.approx(0.6e308)
    with pytest.raises(UserError, match=r"adv_estimator 'group_mean': rewards of up to 1.5e\+308 give advantages that"):
        add_advantages(sequences, config({"adv_estimator": "group_mean"}))


def run_update(run_config: RunConfig, iteration: int = 1) -> list[tuple[list[int], int]]:
    """(first token of each sequence, denominator) of each optimizer step."""
    steps: list[tuple[list[int], int]] = []

    def record(mini_batch: Sequences, objective: Any) -> UpdateResult:
        steps.append(([prompt[0] for prompt, _ in mini_batch.token_lists()], objective.num_tokens))
        return UpdateResult({"ppo_kl": 0.0}, 1.0, 1.0, skipped=False)

    sequences = batch()
    sequences.tokens = torch.tensor([10, 2, 3, 11, 2, 12, 2, 13, 2, 3, 4, 14, 15, 5])
    sequences.loss_mask = torch.ones(8, dtype=torch.bool)
    session = SimpleNamespace(config=run_config, training=run_config.training, record_step=lambda role, result: None)
    update_policy(session, SimpleNamespace(update=record), sequences, iteration)
    return steps


def test_mini_batches_cover_the_batch_in_every_epoch_with_denominators_of_their_own():
    steps = run_update(config(ppo_epochs=2, ppo_mini_batch_size=3))
    assert steps == [([10, 11, 12], 4), ([13, 14, 15], 4)] * 2


def test_shuffled_mini_batches_depend_on_seed_iteration_and_epoch_alone():
    shuffled = config(ppo_epochs=2, ppo_mini_batch_size=3, shuffle_minibatch=True)
    first, again, later = run_update(shuffled), run_update(shuffled), run_update(shuffled, iteration=2)
    assert first == again
    assert first != later and first[:2] != first[2:]
    assert sorted(sum((members for members, _ in first[:2]), [])) == [10, 11, 12, 13, 14, 15]


def test_the_schedule_counts_the_optimizer_steps_that_are_taken():
    for keys in ({}, {"ppo_mini_batch_size": 3}, {"ppo_epochs": 2, "ppo_mini_batch_size": 2}):
        assert policy_steps(config(**keys), iterations=1) == len(run_update(config(**keys)))


def test_metrics_of_several_steps_are_means_maxima_and_counts():
    results = [
        UpdateResult({"loss": 1.0, "ratio_max": 5.0}, 2.0, 0.1, skipped=False),
        UpdateResult({"loss": 3.0, "ratio_max": 4.0}, 4.0, 0.05, skipped=True),
    ]
    assert mean_metrics(results, "actor") == {
        "actor/loss": 2.0,
        "actor/ratio_max": 5.0,
        "actor/grad_norm": 3.0,
        "actor/lr": 0.05,
        "actor/skipped_steps": 1.0,
    }
