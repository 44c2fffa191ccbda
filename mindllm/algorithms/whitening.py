"""Bring values to mean 0 and deviation 1 over the tokens that count."""

import torch
from torch import Tensor

from mindllm.algorithms.aggregation import check_flat, neutralised
from mindllm.algorithms.scaling import scale_of

_EPS = 1e-8


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    r"""Standardise ``values [num_tokens]`` over the tokens where ``mask [num_tokens]`` (bool) is True.

    .. math::
        w_t = \frac{x_t - \bar x}{\sqrt{s^2 + 10^{-8}}} \quad (+\; \bar x \text{ without } \mathtt{shift\_mean})

    with mean and unbiased variance over the unmasked tokens (https://arxiv.org/abs/1707.06347 as implemented for
    language models: https://arxiv.org/abs/1909.08593). ``shift_mean=False``, for rewards, keeps the mean. A single
    token has no deviation: it becomes the mean, or 0 with ``shift_mean``.

    Args:
        values: what is masked may be inf or NaN.
        mask: True = counts.
        shift_mean: whether the mean becomes 0.

    Returns:
        ``[num_tokens]`` in the dtype of ``values``, 0 where masked; computed in fp64, without overflow.

    Raises:
        ValueError: wrong shapes.
    """
    check_flat(values=values, mask=mask)
    exact = neutralised(values.double(), mask)
    one = scale_of(exact.abs().amax()) if len(exact) else exact.new_ones(())  # what 1 is in the unit of ``exact``
    exact = exact * one
    count = mask.sum()
    mean = exact.sum() / count.clamp(min=1)
    centred = torch.where(mask, exact - mean, 0.0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    whitened = centred * torch.rsqrt(variance + _EPS * one.square())
    if not shift_mean:
        whitened = whitened + mean / one
    return torch.where(mask, whitened, 0.0).to(values.dtype)
