import pytest
import torch

from mindllm.algorithms import masked_whiten


def test_the_unmasked_have_mean_zero_and_unbiased_deviation_one():
    values = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 7
    mask = torch.arange(100) % 3 != 0
    whitened = masked_whiten(values, mask)
    assert whitened[mask].mean().item() == pytest.approx(0, abs=1e-12)
    assert whitened[mask].std().item() == pytest.approx(1, rel=1e-8)
    assert whitened[~mask].tolist() == [0.0] * int((~mask).sum())


def test_without_shift_the_mean_stays():
    values, mask = torch.tensor([1.0, 2.0, 6.0]), torch.ones(3, dtype=torch.bool)
    assert masked_whiten(values, mask, shift_mean=False).mean().item() == pytest.approx(3.0)
    torch.testing.assert_close(masked_whiten(values, mask, shift_mean=False), masked_whiten(values, mask) + 3)


def test_values_as_large_as_floats_are_do_not_overflow():
    largest = torch.finfo(torch.float64).max
    values = torch.tensor([largest, -largest, largest / 2], dtype=torch.float64)
    mask = torch.ones(3, dtype=torch.bool)
    expected = masked_whiten(torch.tensor([2.0, -2.0, 1.0], dtype=torch.float64), mask)
    torch.testing.assert_close(masked_whiten(values, mask), expected)
    kept = masked_whiten(values, mask, shift_mean=False)
    torch.testing.assert_close(kept, torch.full_like(kept, largest / 6))


def test_what_is_masked_may_be_anything():
    values = torch.tensor([1.0, torch.nan, torch.inf, 3.0])
    whitened = masked_whiten(values, torch.tensor([True, False, False, True]))
    assert whitened[1:3].tolist() == [0.0, 0.0]
    assert whitened.isfinite().all()


@pytest.mark.parametrize(("shift_mean", "expected"), [(True, 0.0), (False, 5.0)])
def test_a_single_token_and_equal_tokens_become_the_mean(shift_mean, expected):
    assert masked_whiten(torch.tensor([5.0]), torch.tensor([True]), shift_mean).tolist() == [expected]
    equal = masked_whiten(torch.full((3,), 5.0), torch.ones(3, dtype=torch.bool), shift_mean)
    assert equal.tolist() == [expected] * 3


def test_nothing_unmasked_gives_zeros():
    assert masked_whiten(torch.tensor([1.0, 2.0]), torch.tensor([False, False])).tolist() == [0.0, 0.0]
    assert masked_whiten(torch.zeros(0), torch.zeros(0, dtype=torch.bool)).shape == (0,)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="flat and of one length"):
        masked_whiten(torch.zeros(2), torch.ones(1, dtype=torch.bool))
