import math

import pytest
import torch

from mindllm.algorithms import explained_variance, token_weights, value_loss
from tests.vectors import assert_close, load_cases, tensor


def _flat(rows: list) -> torch.Tensor:
    return tensor(rows).flatten()


def _weights(inputs: dict, mask: torch.Tensor) -> torch.Tensor | None:
    """None for the token mean; else the weights, in a batch of as many sequences as the source counted."""
    if inputs["agg"] == "token-mean":
        return None
    rows = len(inputs["mask"])
    copies = inputs.get("global_batch_size", rows) // rows
    lengths = torch.full((rows * copies,), len(inputs["mask"][0]))
    return token_weights(mask.repeat(copies), lengths, inputs["agg"], max_length=1)[: len(mask)]


@pytest.mark.parametrize("case", load_cases("value_loss"), ids=lambda c: c["id"])
def test_value_loss_gradient_and_clip_fraction_equal_the_recorded_ones(case):
    inputs, expected = case["inputs"], case["expected"]
    values, mask = _flat(inputs["values"]).requires_grad_(), _flat(inputs["mask"]).bool()
    out = value_loss(
        values,
        _flat(inputs["old_values"]),
        _flat(inputs["returns"]),
        mask,
        inputs.get("batch_num_tokens") or float(mask.sum()),
        inputs["clip"],
        _weights(inputs, mask),
    )
    loss = out.loss * inputs.get("dp_size", 1) * inputs.get("scale", 1.0)  # a mean over ranks, a weight of the loss
    assert_close(case, loss.detach(), expected["loss"])
    loss.backward()
    assert_close(case, values.grad, expected["grad_wrt_values"])
    if "clipfrac" in expected:
        assert int(out.clip_fraction_sum) / int(out.num_tokens) == pytest.approx(expected["clipfrac"], rel=1e-8)


def _random_tokens(num_tokens: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values, old_values, returns = torch.randn(3, num_tokens, dtype=torch.float64, generator=generator)
    return [values, old_values, returns, torch.rand(num_tokens, generator=generator) < 0.7]


def test_losses_and_metrics_of_parts_add_up_to_those_of_the_whole():
    tokens = _random_tokens(50)
    whole = value_loss(*tokens, 40, 0.2)
    parts = [value_loss(*(t[cut] for t in tokens), 40, 0.2) for cut in (slice(0, 7), slice(7, 8), slice(8, 50))]
    for name in whole._fields:
        torch.testing.assert_close(sum(getattr(part, name) for part in parts), getattr(whole, name))


def test_explained_variance_is_one_minus_the_variance_that_is_left():
    values, _, returns, mask = _random_tokens(200)
    values = returns + 0.5 * values + 3  # an offset is no lack of explanation
    out = value_loss(values, values, returns, mask, 1, None)
    count = int(out.num_tokens)
    sums = (out.residual_sum, out.residual_square_sum, out.return_sum, out.return_square_sum)
    explained = explained_variance(*(float(each) / count for each in sums))
    residuals = (returns - values)[mask]
    assert explained == pytest.approx(1 - float(residuals.var() / returns[mask].var()))


def test_explained_variance_of_equal_returns_is_undefined():
    assert math.isnan(explained_variance(0.1, 0.5, 0.3, 0.09))
    assert math.isnan(explained_variance(0.0, 0.0, 0.0, 0.0))


def test_infinities_behind_the_mask_reach_neither_loss_nor_gradient():
    values = torch.tensor([1.0, torch.inf, torch.nan], requires_grad=True)
    other = torch.tensor([0.5, torch.nan, -torch.inf])
    out = value_loss(values, other, other, torch.tensor([True, False, False]), 1, 0.2)
    out.loss.backward()
    assert all(torch.isfinite(value) for value in out)
    assert values.grad[1:].tolist() == [0.0, 0.0]


def test_no_tokens_give_a_zero_loss_that_can_be_differentiated():
    empty = torch.zeros(0)
    out = value_loss(empty.clone().requires_grad_(), empty, empty, empty.bool(), 5, 0.2)
    out.loss.backward()
    assert (out.loss.item(), int(out.num_tokens)) == (0.0, 0)


def test_wrong_shapes_and_clip_ranges_are_refused():
    two, mask = torch.zeros(2), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="flat and of one length"):
        value_loss(two, torch.zeros(1), two, mask, 2, 0.2)
    with pytest.raises(ValueError, match="clip range must be positive"):
        value_loss(two, two, two, mask, 2, 0.0)
    with pytest.raises(ValueError, match="denominator must be positive"):
        value_loss(two, two, two, mask, 0, 0.2)
