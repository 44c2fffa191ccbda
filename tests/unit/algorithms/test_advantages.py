import math
import sys
from fractions import Fraction

import pytest
import torch

from mindllm.algorithms import broadcast_to_tokens, group_advantages, mean
from tests.vectors import assert_close, load_cases, tensor

LEFT_OUT = {
    "grpo_verl_unequal_groups": "there the only member of a group keeps its score; here its advantage is 0",
    "grpo_verl_single_sample_nostd": "there the only member of a group keeps its score; here its advantage is 0",
    "grpo_trl_batch": "deviation over the batch, not over the group",
    "grpo_megatron_rl": "population standard deviation; ours is unbiased",
    "grpo_megatron_rl_failed_rollouts": "population standard deviation; ours is unbiased",
}


def _rewards_and_groups(inputs: dict) -> tuple[torch.Tensor, torch.Tensor]:
    if "scores" in inputs:
        names = sorted(set(inputs["group"]))
        return tensor(inputs["scores"]), torch.tensor([names.index(name) for name in inputs["group"]])
    per_function = tensor(inputs["rewards_per_func"])  # [n, functions], NaN = no opinion
    total = (per_function.nan_to_num(0.0) * tensor(inputs["reward_weights"])).sum(dim=1)
    total[per_function.isnan().all(dim=1)] = torch.nan
    return total, torch.arange(len(total)) // inputs["num_generations"]


@pytest.mark.parametrize("case", [c for c in load_cases("grpo") if c["id"] not in LEFT_OUT], ids=lambda c: c["id"])
def test_group_advantages_equal_the_recorded_ones(case):
    inputs = case["inputs"]
    estimator = "group_norm" if inputs.get("normalize_std", True) else "group_mean"
    rewards, groups = _rewards_and_groups(inputs)
    per_sequence = group_advantages(rewards, groups, estimator, eps=inputs["eps"])
    assert_close(case, per_sequence, case["expected"]["advantage_per_seq"])
    if "mask" in inputs:
        mask = tensor(inputs["mask"]).bool()
        flat = broadcast_to_tokens(per_sequence, mask.sum(dim=1))
        assert_close(case, flat, tensor(case["expected"]["advantages"])[mask].tolist())


def test_every_left_out_case_exists():
    assert set(LEFT_OUT) <= {case["id"] for case in load_cases("grpo")}


@pytest.mark.parametrize("estimator", ["group_norm", "group_mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_have_advantage_exactly_zero(estimator, dtype):
    rewards = torch.full((7,), 0.1, dtype=dtype)
    assert group_advantages(rewards, torch.zeros(7, dtype=torch.int64), estimator, eps=1e-8).tolist() == [0.0] * 7


def test_rewards_that_differ_by_float_noise_have_advantage_exactly_zero():
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.3], dtype=torch.float64)
    assert rewards.unique().numel() == 2
    assert group_advantages(rewards, torch.zeros(4, dtype=torch.int64), eps=1e-12).tolist() == [0.0] * 4


LARGEST = sys.float_info.max
LARGE_GROUPS = [
    [LARGEST, -LARGEST, LARGEST / 2, 0.0],
    [LARGEST, LARGEST, -LARGEST],
    [1e308, 1.0, 2.0],
    [1e200, 3e200, 1e200],
    [-1e155, 1e155, 1e150],
]


@pytest.mark.parametrize("rewards", LARGE_GROUPS)
def test_rewards_as_large_as_floats_are_give_the_exact_advantages(rewards):
    exact = [Fraction(reward) for reward in rewards]
    average = sum(exact) / len(exact)
    variance = sum((one - average) ** 2 for one in exact) / (len(exact) - 1)
    deviation = math.isqrt(int(variance))  # of numbers beyond 1e150: exact enough
    # Beside it a group of small rewards, whose result must not change.
    beside = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    both = torch.cat([torch.tensor(rewards, dtype=torch.float64), beside])
    groups = torch.tensor([7] * len(rewards) + [3] * 3)
    normed = group_advantages(both, groups)
    assert normed[: len(rewards)].tolist() == pytest.approx([float((one - average) / deviation) for one in exact])
    assert torch.equal(normed[len(rewards) :], group_advantages(beside, torch.zeros(3, dtype=torch.int64)))
    centred = group_advantages(both, groups, "group_mean")[: len(rewards)].tolist()
    for found, one in zip(centred, exact, strict=True):
        if abs(one - average) > LARGEST:
            assert found == (math.inf if one > average else -math.inf)
        else:
            assert found == pytest.approx(float(one - average), rel=1e-12)


def test_the_mean_of_large_numbers_is_exact():
    assert mean(torch.tensor([LARGEST, LARGEST, -LARGEST, LARGEST], dtype=torch.float64)) == LARGEST / 2
    assert mean(torch.tensor([1e308, 1.5e308], dtype=torch.float64)) == 1.25e308
    assert mean(torch.tensor([0.1, 0.2])) == torch.tensor([0.1, 0.2]).double().mean().item()
    assert math.isnan(mean(torch.zeros(0)))


def test_a_real_but_small_spread_is_kept():
    rewards = torch.tensor([1.0, 1.001], dtype=torch.float64)
    assert group_advantages(rewards, torch.zeros(2, dtype=torch.int64)).tolist() != [0.0, 0.0]


@pytest.mark.parametrize("estimator", ["group_norm", "group_mean"])
def test_a_group_of_one_has_advantage_zero(estimator):
    rewards = torch.tensor([5.0, 1.0, 0.0])
    assert group_advantages(rewards, torch.tensor([9, 4, 4]), estimator)[0] == 0.0


def test_all_wrong_groups_have_advantage_zero():
    assert group_advantages(torch.zeros(4), torch.zeros(4, dtype=torch.int64)).tolist() == [0.0] * 4


def test_order_and_values_of_the_group_ids_do_not_matter():
    rewards = torch.tensor([1.0, 0.0, 3.0, 2.0, 0.5, 1.5])
    plain = group_advantages(rewards, torch.tensor([0, 0, 0, 1, 1, 1]))
    order = torch.tensor([3, 0, 4, 1, 5, 2])
    mixed = group_advantages(rewards[order], torch.tensor([7, 7, 7, -2, -2, -2])[order])
    torch.testing.assert_close(mixed, plain[order])


def test_a_response_without_reward_is_left_out_of_its_group():
    rewards = torch.tensor([1.0, torch.nan, 0.0], dtype=torch.float64)
    advantages = group_advantages(rewards, torch.zeros(3, dtype=torch.int64), "group_mean")
    assert advantages.tolist() == [0.5, 0.0, -0.5]


def test_no_responses_give_no_advantages():
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_wrong_shapes_and_unknown_estimators_are_refused():
    with pytest.raises(ValueError, match="flat and of one length"):
        group_advantages(torch.zeros(3), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="unknown advantage estimator 'gae'"):
        group_advantages(torch.zeros(1), torch.zeros(1, dtype=torch.int64), "gae")
    with pytest.raises(ValueError, match="flat and of one length"):
        broadcast_to_tokens(torch.zeros(2), torch.tensor([1]))


def test_empty_sequences_receive_no_tokens():
    assert broadcast_to_tokens(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 1])).tolist() == [1.0, 1.0, 3.0]
