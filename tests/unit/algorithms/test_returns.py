import pytest
import torch

from mindllm.algorithms import gae, masked_whiten, token_rewards
from tests.vectors import assert_close, load_cases, tensor

LEFT_OUT = {"gae_nemo_vapo_length_adaptive": "a lambda of its own for each length is not offered"}
CASES = [case for case in load_cases("gae") if case["id"] not in LEFT_OUT]


def _jagged(inputs: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, values and lengths of the unmasked tokens, and the mask they were picked by."""
    mask = tensor(inputs["mask"]).bool()
    lengths = mask.sum(dim=1)
    if "scores" in inputs:
        rewards = token_rewards(tensor(inputs["scores"]), None, 0.0, lengths)
    else:
        rewards = tensor(inputs["rewards"])[mask]
    return rewards, tensor(inputs["values"])[mask], lengths, mask


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_advantages_and_returns_equal_the_recorded_ones(case):
    inputs, expected = case["inputs"], case["expected"]
    rewards, values, lengths, mask = _jagged(inputs)
    advantages, returns = gae(rewards, values, lengths, inputs["gamma"], inputs["lam"])
    assert_close(case, returns, tensor(expected["returns"])[mask].tolist())
    if "advantages_unwhitened" in expected:
        assert_close(case, advantages, tensor(expected["advantages_unwhitened"])[mask].tolist())
    if "advantages" in expected:
        if inputs.get("normalize", True):
            advantages = masked_whiten(advantages, torch.ones(len(advantages), dtype=torch.bool))
        tolerance = {key: max(case[key], 1e-8) for key in ("rtol", "atol")}  # there 1e-8 is added to each count
        assert_close(case | tolerance, advantages, tensor(expected["advantages"])[mask].tolist())


def test_every_left_out_case_exists():
    assert set(LEFT_OUT) <= {case["id"] for case in load_cases("gae")}
    assert len(CASES) == 11


@pytest.mark.parametrize("case", load_cases("reward_shaping"), ids=lambda c: c["id"])
def test_token_rewards_equal_the_recorded_ones(case):
    inputs = case["inputs"]
    mask = tensor(inputs["mask"]).bool()
    scores = tensor(inputs["scores"]).clamp(*inputs["clip"])  # there the function clips, here the caller may
    rewards = token_rewards(scores, tensor(inputs["kl"])[mask], inputs["kl_coef"], mask.sum(dim=1))
    assert_close(case, rewards, tensor(case["expected"]["token_rewards"])[mask].tolist())


def _random(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rewards, values = torch.randn(2, sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return rewards, values, torch.tensor(lengths)


def test_a_response_is_untouched_by_its_neighbours():
    rewards, values, lengths = _random([3, 0, 1, 5, 0])
    together = torch.stack(gae(rewards, values, lengths, 0.9, 0.8))
    alone = [
        torch.stack(gae(r, v, torch.tensor([len(r)]), 0.9, 0.8))
        for r, v in zip(rewards.split(lengths.tolist()), values.split(lengths.tolist()), strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), rtol=0, atol=1e-15)


def test_without_discount_and_decay_the_return_is_the_reward_to_go():
    rewards, values, lengths = _random([4, 2])
    _, returns = gae(rewards, values, lengths, gamma=1.0, lam=1.0)
    to_go = [part.flip(0).cumsum(0).flip(0) for part in rewards.split([4, 2])]
    torch.testing.assert_close(returns, torch.cat(to_go))


def test_a_cut_response_goes_on_with_its_bootstrap_value():
    rewards, values, lengths = _random([2, 0, 3])
    bootstrap = torch.tensor([5.0, 7.0, 0.0])
    advantages, _ = gae(rewards, values, lengths, 0.9, 0.5, bootstrap)
    plain, _ = gae(rewards, values, lengths, 0.9, 0.5)
    torch.testing.assert_close(advantages - plain, torch.tensor([0.45 * 4.5, 4.5, 0.0, 0.0, 0.0], dtype=torch.float64))


def test_a_bootstrapped_cut_equals_the_uncut_response_when_the_critic_is_right():
    rewards, values, lengths = _random([6])
    whole, _ = gae(rewards, values, lengths, 0.9, 0.0)
    cut, _ = gae(rewards[:4], values[:4], torch.tensor([4]), 0.9, 0.0, values[4:5])
    torch.testing.assert_close(cut, whole[:4])


def test_no_responses_and_empty_responses_have_no_advantages():
    for lengths in ([], [0, 0]):
        advantages, returns = gae(torch.zeros(0), torch.zeros(0), torch.tensor(lengths, dtype=torch.int64), 1.0, 1.0)
        assert advantages.shape == returns.shape == (0,)


def test_half_precision_inputs_are_summed_in_double():
    lengths = torch.tensor([4096])
    advantages, _ = gae(torch.full((4096,), 1e-4), torch.zeros(4096), lengths, 1.0, 1.0)
    assert advantages.dtype == torch.float32
    assert advantages[0].item() == pytest.approx(4096 * float(torch.tensor(1e-4)), rel=1e-7)


def test_the_score_sits_on_the_last_token_and_that_of_an_empty_response_is_lost():
    rewards = token_rewards(torch.tensor([1.0, 2.0, 3.0, 4.0]), None, 0.1, torch.tensor([2, 0, 1, 0]))
    assert rewards.tolist() == [0.0, 1.0, 3.0]


def test_a_score_is_added_to_the_kl_penalty_of_its_token():
    rewards = token_rewards(torch.tensor([1.0]), torch.tensor([0.5, -1.0]), 0.1, torch.tensor([2]))
    torch.testing.assert_close(rewards, torch.tensor([-0.05, 1.1]))


def test_wrong_shapes_are_refused():
    two, lengths = torch.zeros(2), torch.tensor([2])
    with pytest.raises(ValueError, match=r"kl \(1,\) must have one value for each of the 2 tokens"):
        token_rewards(torch.zeros(1), torch.zeros(1), 0.1, lengths)
    with pytest.raises(ValueError, match="scores .* must be of one length"):
        token_rewards(two, two, 0.1, lengths)
    with pytest.raises(ValueError, match="one value for each of the 2 tokens"):
        gae(torch.zeros(3), two, lengths, 1.0, 1.0)
    with pytest.raises(ValueError, match="bootstrap .* must be of one length"):
        gae(two, two, lengths, 1.0, 1.0, two)
    with pytest.raises(ValueError, match="flat whole numbers"):
        gae(two, two, torch.tensor([2.0]), 1.0, 1.0)
