"""Loss of a critic and how well it explains the returns."""

from typing import NamedTuple

import torch
from torch import Tensor

from mindllm.algorithms.aggregation import aggregate, check_flat, masked_sum, neutralised


class ValueLoss(NamedTuple):
    """A value loss, and its metrics as sums over this call's tokens (detached scalars)."""

    loss: Tensor  # sum over tokens / denominator
    clip_fraction_sum: Tensor  # tokens whose clipped error is the larger
    value_sum: Tensor
    residual_sum: Tensor  # of return - value, as the next one a part of the explained variance
    residual_square_sum: Tensor
    return_sum: Tensor
    return_square_sum: Tensor
    num_tokens: Tensor


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    denominator: float,
    clip_range: float | None,
    weights: Tensor | None = None,
) -> ValueLoss:
    r"""Squared error of a critic, clipped around the values that the advantages were computed from.

    .. math::
        \bar V_t = V^{old}_t + \mathrm{clip}(V_t - V^{old}_t, -c, c), \qquad
        L = \frac{1}{2N} \sum_t \max\left((V_t - R_t)^2,\; (\bar V_t - R_t)^2\right)

    https://arxiv.org/abs/1707.06347 as implemented for language models (https://arxiv.org/abs/1909.08593,
    https://arxiv.org/abs/2203.02155).

    Args:
        values: ``[num_tokens]`` of the critic being trained; carries the gradient.
        old_values: ``[num_tokens]`` before the update.
        returns: ``[num_tokens]``, see ``gae``.
        mask: ``[num_tokens]`` bool, True = trained. What is masked may be inf or NaN.
        denominator: N, the unmasked tokens of the whole optimizer step over all ranks.
        clip_range: c > 0, or None for no clipping.
        weights: ``[num_tokens]`` of ``token_weights`` in place of 1 / N, or None.

    Raises:
        ValueError: shapes differ, or the denominator or the clip range is not positive.
    """
    check_flat(values=values, old_values=old_values, returns=returns, mask=mask)
    if clip_range is not None and not clip_range > 0:
        raise ValueError(f"a clip range must be positive, found {clip_range}")
    values, old_values, returns = (neutralised(tensor, mask) for tensor in (values, old_values, returns))
    per_token = (values - returns).square()
    clipped_away = torch.zeros_like(mask)
    if clip_range is not None:
        clipped = (old_values + (values - old_values).clamp(-clip_range, clip_range) - returns).square()
        clipped_away = mask & (clipped > per_token)
        per_token = torch.maximum(per_token, clipped)
    predicted, target = values.detach().double(), returns.detach().double()
    residuals = target - predicted
    return ValueLoss(
        loss=0.5 * aggregate(per_token, mask, denominator, weights),
        clip_fraction_sum=clipped_away.sum(),
        value_sum=masked_sum(predicted, mask),
        residual_sum=masked_sum(residuals, mask),
        residual_square_sum=masked_sum(residuals.square(), mask),
        return_sum=masked_sum(target, mask),
        return_square_sum=masked_sum(target.square(), mask),
        num_tokens=mask.sum(),
    )


def explained_variance(
    residual_mean: float, residual_square_mean: float, return_mean: float, return_square_mean: float
) -> float:
    """``1 - Var(returns - values) / Var(returns)`` from the sums of ``ValueLoss``, each divided by its token count.

    1 is a perfect critic, 0 one that does as well as a constant; NaN where the returns do not vary.
    """
    variance = return_square_mean - return_mean**2
    # Of equal returns nothing but rounding is left.
    if variance <= 1e-12 * return_square_mean:
        return float("nan")
    return 1 - (residual_square_mean - residual_mean**2) / variance
