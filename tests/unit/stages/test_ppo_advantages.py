"""Rewards, advantages and returns of an iteration against closed forms."""

import math

import pytest
import torch

from mindllm.algorithms import make_kl_controller
from mindllm.config import AlgorithmConfig, RunConfig
from mindllm.config.sections import KLControl
from mindllm.data.sequences import FinishReason, Sequences
from mindllm.errors import UserError
from mindllm.stages.ppo import add_advantages

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
OLD = [-1.0, -2.0, -0.5, -3.0, -0.25]
REF = [-1.5, -1.0, -0.5, -2.0, -1.25]
VALUES = [0.5, -1.0, 2.0, 0.25, 1.5]
LAST_VALUES = [7.0, -3.0, 5.0]
SCORES = [2.0, 4.0, -1.0]


def make_batch(finish=(STOP, LENGTH, STOP)):
    """Responses of three tokens, none at all, and two; five tokens in a row."""
    batch = Sequences.from_lists([[1, 2], [3], [4]], [[5, 6, 0], [], [7, 0]])
    batch.finish_reason = torch.tensor([int(reason) for reason in finish])
    batch.rewards = torch.tensor(SCORES, dtype=torch.float64)
    batch.old_logprobs, batch.ref_logprobs, batch.values = torch.tensor(OLD), torch.tensor(REF), torch.tensor(VALUES)
    return batch


def algorithm(**changes):
    """No KL, no whitening, Monte Carlo without discount, unless ``changes`` says so."""
    control = changes.pop("kl_ctrl", {})
    values = {"adv_estimator": "gae", "gamma": 1.0, "lam": 1.0, "advantage_whiten": False}
    return AlgorithmConfig(**{**values, **changes}, kl_ctrl=KLControl(**control))


def advantages(batch, settings, last_values=LAST_VALUES):
    config = RunConfig.model_construct(algorithm=settings)
    controller = make_kl_controller(settings.kl_ctrl)
    metrics = add_advantages(batch, torch.tensor(last_values), config, controller)
    return metrics, controller


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-5)


def test_without_discount_or_kl_every_return_is_the_score():
    batch = make_batch()
    metrics, _ = advantages(batch, algorithm())
    close(batch.returns, [2.0, 2.0, 2.0, -1.0, -1.0])
    close(batch.advantages, [1.5, 3.0, 0.0, -1.25, -2.5])
    assert batch.loss_mask.all() and batch.loss_mask.shape == (5,)
    # the empty response's score has no token to stand on
    assert metrics["critic/rewards/mean"] == pytest.approx((2.0 - 1.0) / 3)
    assert metrics["critic/returns/mean"] == pytest.approx(4 / 5)
    assert metrics["critic/values/mean"] == pytest.approx(sum(VALUES) / 5)


def test_returns_that_a_critic_cannot_learn_are_refused_in_a_sentence():
    batch = make_batch()
    batch.rewards = torch.tensor([1.7e308, 1.7e308, -1.0], dtype=torch.float64)
    with pytest.raises(
        UserError, match=r"rewards of up to 1.7e\+308 give returns whose squares, the critic's loss, fp32"
    ):
        advantages(batch, algorithm())
    whitened = make_batch()
    whitened.rewards = batch.rewards
    with pytest.raises(UserError, match="give the rewards smaller weights"):
        advantages(whitened, algorithm(advantage_whiten=True))


def test_kl_is_charged_per_token_and_the_score_stands_on_the_last():
    batch = make_batch()
    settings = algorithm(gamma=0.0, lam=0.0, use_kl_in_reward=True, kl_ctrl={"kl_coef": 0.1})
    metrics, _ = advantages(batch, settings)
    # With gamma 0 a return is the token's own reward: -0.1 (old - ref), plus the score at the end.
    close(batch.returns, [-0.05, 0.1, 0.0 + 2.0, 0.1, -0.1 - 1.0])
    assert metrics["critic/kl_coef"] == 0.1
    # per token and per response, then over responses, the empty one with 0
    assert metrics["critic/kl/mean"] == pytest.approx(((0.5 - 1.0 + 0.0) / 3 + 0 + (-1.0 + 1.0) / 2) / 3)


@pytest.mark.parametrize(
    ("kind", "estimate"),
    [
        ("kl", lambda d: d),
        ("abs", abs),
        ("mse", lambda d: d * d / 2),
        ("low_var_kl", lambda d: math.exp(-d) - 1 + d),
    ],
)
def test_the_configured_estimator_of_the_kl_is_charged(kind, estimate):
    batch = make_batch()
    batch.rewards = torch.zeros(3, dtype=torch.float64)
    settings = algorithm(gamma=0.0, use_kl_in_reward=True, kl_penalty=kind, kl_ctrl={"kl_coef": 0.2})
    advantages(batch, settings)
    close(batch.returns, [-0.2 * estimate(old - ref) for old, ref in zip(OLD, REF, strict=True)])


def test_discount_and_lambda_weigh_the_errors_of_later_tokens():
    batch, gamma, lam = make_batch(), 0.9, 0.5
    advantages(batch, algorithm(gamma=gamma, lam=lam))
    third = 2.0 - 2.0
    second = gamma * 2.0 - -1.0 + gamma * lam * third
    first = gamma * -1.0 - 0.5 + gamma * lam * second
    close(batch.advantages[:3], [first, second, third])
    close(batch.returns[:3], [first + 0.5, second - 1.0, third + 2.0])


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_response_that_was_cut_may_go_on_with_the_value_of_its_last_state(bootstrap):
    batch, gamma, lam = make_batch((LENGTH, LENGTH, STOP)), 0.9, 0.5
    advantages(batch, algorithm(gamma=gamma, lam=lam, bootstrap_truncated=bootstrap))
    third = 2.0 + (gamma * 7.0 if bootstrap else 0.0) - 2.0
    second = gamma * 2.0 + 1.0 + gamma * lam * third
    first = gamma * -1.0 - 0.5 + gamma * lam * second
    close(batch.advantages[:3], [first, second, third])
    last = -1.0 - 1.5  # ended by its end token: nothing follows, whatever the critic says
    close(batch.advantages[3:], [gamma * 1.5 - 0.25 + gamma * lam * last, last])


def test_the_penalty_for_a_missing_end_token_counts_where_the_response_was_cut():
    batch = make_batch((LENGTH, LENGTH, STOP))
    advantages(batch, algorithm(missing_eos_penalty=0.75))
    close(batch.returns, [1.25, 1.25, 1.25, -1.0, -1.0])


def test_a_reward_that_nobody_gave_is_nothing():
    batch = make_batch()
    batch.rewards = torch.tensor([float("nan"), 1.0, -1.0], dtype=torch.float64)
    advantages(batch, algorithm())
    close(batch.returns, [0.0, 0.0, 0.0, -1.0, -1.0])


def test_advantages_are_whitened_over_all_tokens_of_the_step_and_returns_are_not():
    plain, whitened = make_batch(), make_batch()
    advantages(plain, algorithm())
    metrics, _ = advantages(whitened, algorithm(advantage_whiten=True))
    close(whitened.returns, plain.returns.tolist())
    mean = plain.advantages.mean()
    deviation = ((plain.advantages - mean) ** 2).sum() / 4
    close(whitened.advantages, ((plain.advantages - mean) / (deviation + 1e-8).sqrt()).tolist())
    assert metrics["critic/advantages/mean"] == pytest.approx(float(mean))  # as they were estimated


def test_whitening_by_mini_batch_is_left_to_the_update():
    plain, later = make_batch(), make_batch()
    advantages(plain, algorithm())
    advantages(later, algorithm(advantage_whiten=True, whiten_scope="minibatch"))
    close(later.advantages, plain.advantages.tolist())


def test_whitened_rewards_keep_their_mean():
    batch = make_batch()
    metrics, _ = advantages(batch, algorithm(gamma=0.0, whiten_rewards=True))
    rewards = torch.tensor([0.0, 0.0, 2.0, 0.0, -1.0], dtype=torch.float64)
    expected = (rewards - rewards.mean()) / (rewards.var() + 1e-8).sqrt() + rewards.mean()
    close(batch.returns, expected.tolist())
    assert metrics["critic/rewards/mean"] == pytest.approx(float(expected.sum()) / 3)


def test_an_adaptive_coefficient_moves_after_the_iteration_that_it_was_used_in():
    control = {"type": "adaptive", "kl_coef": 0.1, "target_kl": 0.01, "horizon": 30}
    settings = algorithm(use_kl_in_reward=True, kl_ctrl=control)
    batch = make_batch()
    batch.ref_logprobs = batch.old_logprobs - 1.0  # a KL of 1 per token: far above the target
    metrics, controller = advantages(batch, settings)
    assert metrics["critic/kl_coef"] == 0.1
    assert controller.value == pytest.approx(0.1 * (1 + 0.2 * 3 / 30))


def test_an_iteration_of_empty_responses_has_no_tokens_and_no_error():
    batch = Sequences.from_lists([[1], [2, 3]], [[], []])
    batch.finish_reason = torch.tensor([int(LENGTH), int(LENGTH)])
    batch.rewards = torch.tensor([1.0, 2.0], dtype=torch.float64)
    batch.old_logprobs = batch.ref_logprobs = batch.values = torch.empty(0)
    settings = algorithm(advantage_whiten=True, use_kl_in_reward=True, kl_ctrl={"kl_coef": 0.1})
    metrics, _ = advantages(batch, settings, [1.0, 1.0])
    assert batch.advantages.numel() == batch.returns.numel() == 0
    assert metrics["critic/rewards/mean"] == 0.0
