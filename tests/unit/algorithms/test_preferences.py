import pytest
import torch

from mindllm.algorithms import bradley_terry_loss
from tests.vectors import assert_close, load_cases, tensor

CASES = [case for case in load_cases("dpo_rm_sft") if case["id"].startswith("rm_")]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_the_loss_of_a_reward_model_equals_the_recorded_one(case):
    inputs = case["inputs"]
    margin = tensor(inputs["margin"]) if "margin" in inputs else None
    chosen = tensor(inputs["chosen"]).requires_grad_()
    out = bradley_terry_loss(chosen, tensor(inputs["rejected"]), margin, len(inputs["chosen"]))
    assert_close(case, out.loss.detach(), case["expected"]["loss"])
    out.loss.backward()
    assert chosen.grad.isfinite().all()


def test_the_cases_are_there():
    assert len(CASES) == 2


def test_a_tie_is_half_right_and_the_margin_does_not_count_for_accuracy():
    chosen, rejected = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.9, 2.0, 1.0])
    out = bradley_terry_loss(chosen, rejected, torch.full((3,), 5.0), 3)
    assert (out.accuracy_sum.item(), int(out.num_pairs)) == (1.5, 3)
    assert out.score_difference_sum.item() == pytest.approx(-0.9)


def test_losses_and_metrics_of_parts_add_up_to_those_of_the_whole():
    chosen, rejected, margin = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = bradley_terry_loss(chosen, rejected, margin, 9)
    parts = [bradley_terry_loss(chosen[c], rejected[c], margin[c], 9) for c in (slice(0, 4), slice(4, 9))]
    for name in whole._fields:
        torch.testing.assert_close(sum(getattr(part, name) for part in parts), getattr(whole, name))


def test_the_gradient_pushes_the_two_scores_apart_with_equal_force():
    chosen, rejected = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    bradley_terry_loss(chosen, rejected, None, 1).loss.backward()
    assert (chosen.grad.item(), rejected.grad.item()) == (-0.5, 0.5)


def test_wrong_shapes_and_denominators_are_refused():
    with pytest.raises(ValueError, match="flat and of one length"):
        bradley_terry_loss(torch.zeros(2), torch.zeros(1), None, 2)
    with pytest.raises(ValueError, match="flat and of one length"):
        bradley_terry_loss(torch.zeros(2), torch.zeros(2), torch.zeros(1), 2)
    with pytest.raises(ValueError, match="denominator must be positive"):
        bradley_terry_loss(torch.zeros(2), torch.zeros(2), None, 0)
