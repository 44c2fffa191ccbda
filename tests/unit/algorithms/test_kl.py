import pytest
import torch

from mindllm.algorithms import kl_loss, kl_penalty
from mindllm.algorithms.kl import k2, k3
from tests.vectors import assert_close, load_cases, tensor


def _estimate(inputs: dict, logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    if "input_clamp" not in inputs or inputs["estimator"] == "k1":
        return kl_penalty(logprobs, ref_logprobs, inputs["estimator"])
    estimator = {"k2": k2, "k3": k3}[inputs["estimator"]]
    return estimator(logprobs, ref_logprobs, inputs["input_clamp"], inputs["output_clamp"])


@pytest.mark.parametrize("case", load_cases("kl"), ids=lambda c: c["id"])
def test_kl_estimates_and_their_gradients_equal_the_recorded_ones(case):
    logprobs = tensor(case["inputs"]["logprob"]).flatten().requires_grad_()
    kl = _estimate(case["inputs"], logprobs, tensor(case["inputs"]["ref_logprob"]).flatten())
    kl.sum().backward()
    if "kl" in case["expected"]:
        assert_close(case, kl, case["expected"]["kl"])
    if "grad_sum_wrt_logprob" in case["expected"]:
        assert_close(case, logprobs.grad, case["expected"]["grad_sum_wrt_logprob"])


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl", "low_var_kl+"])
def test_equal_policies_have_no_kl(kind):
    logprobs = torch.tensor([-0.1, -5.0, -40.0])
    assert kl_penalty(logprobs, logprobs.clone(), kind).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("names", [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3"), ("low_var_kl+", "k3+")])
def test_aliases_mean_the_same(names):
    logprobs, ref = torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -0.5])
    assert torch.equal(kl_penalty(logprobs, ref, names[0]), kl_penalty(logprobs, ref, names[1]))


def test_kl_loss_is_a_share_of_the_global_mean_with_countable_metrics():
    logprobs = torch.tensor([-1.0, -2.0, -30.0, -1.0], requires_grad=True)
    ref = torch.tensor([-1.5, -1.0, -1.0, -9.0])
    term = kl_loss(logprobs, ref, torch.tensor([True, True, True, False]), "low_var_kl", denominator=12)
    expected = k3(logprobs, ref)[:3].sum()
    torch.testing.assert_close(term.loss, expected / 12)
    torch.testing.assert_close(term.kl_sum, expected.detach())
    assert (int(term.clamped_sum), int(term.num_tokens)) == (1, 3)
    term.loss.backward()
    assert logprobs.grad[2] == 0.0  # clamped: a value, no gradient
    assert logprobs.grad[3] == 0.0


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl", "low_var_kl+"])
def test_minus_infinity_behind_the_mask_reaches_neither_loss_nor_gradient(kind):
    logprobs = torch.tensor([-1.0, -torch.inf, torch.nan], requires_grad=True)
    ref = torch.tensor([-2.0, -torch.inf, -1.0])
    term = kl_loss(logprobs, ref, torch.tensor([True, False, False]), kind, denominator=1)
    term.loss.backward()
    assert torch.isfinite(term.loss)
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[1:].tolist() == [0.0, 0.0]


def test_unknown_estimators_and_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="unknown KL estimator 'k4'"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k4")
    with pytest.raises(ValueError, match="flat and of one length"):
        kl_penalty(torch.zeros(2), torch.zeros(1), "kl")
