"""Losses of a policy: clipped policy gradient and maximum likelihood."""

from typing import NamedTuple

import torch
from torch import Tensor

from mindllm.algorithms.aggregation import aggregate, check_flat, masked_sum, neutralised, token_mean

# exp of more than this overflows fp32 a little later; a ratio of e^20 is clipped or a mistake anyway.
_MAX_LOG_RATIO = 20.0


class PolicyLoss(NamedTuple):
    """A policy loss, and its metrics over this call's tokens: sums with their count, and one maximum (all detached).

    Sums are added over micro-batches and ranks and divided by the added ``num_tokens``; the maximum is maximised.
    """

    loss: Tensor  # sum over tokens / denominator
    clip_fraction_sum: Tensor  # tokens whose clipped term is the larger, i.e. which PPO's clip has cut off
    dual_clip_sum: Tensor  # tokens with a negative advantage which the dual clip has cut off
    kl_sum: Tensor  # sum of old_logprobs - logprobs, the k1 estimate of KL(old || new)
    ratio_sum: Tensor
    ratio_deviation_max: Tensor  # max |ratio - 1|; 0 at the first update of on-policy data
    num_tokens: Tensor


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    denominator: float,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    weights: Tensor | None = None,
) -> PolicyLoss:
    r"""Clipped policy gradient of PPO and GRPO.

    .. math::
        \rho_t = e^{\log\pi(a_t) - \log\pi_{old}(a_t)}, \qquad
        L_t = \max\left(-\rho_t A_t,\; -\mathrm{clip}(\rho_t, 1 - c_{low}, 1 + c_{high}) A_t\right), \qquad
        L = \frac{1}{N} \sum_t L_t

    and with a dual clip c, for negative advantages, :math:`L_t = \min(L_t, -c A_t)`.
    PPO: https://arxiv.org/abs/1707.06347, asymmetric clip (DAPO): https://arxiv.org/abs/2503.14476,
    dual clip: https://arxiv.org/abs/1912.09729. The log-ratio is clamped to ±20 so that the ratio stays finite.

    Args:
        logprobs: ``[num_tokens]`` of the policy being trained; carries the gradient.
        old_logprobs: ``[num_tokens]`` of the policy that defines the ratio.
        advantages: ``[num_tokens]``.
        mask: ``[num_tokens]`` bool, True = trained. What is masked may be inf or NaN.
        denominator: N, the unmasked tokens of the whole optimizer step over all ranks.
        clip_low, clip_high: widths of the clip range below and above 1.
        dual_clip: c > 1, or None for none.
        weights: ``[num_tokens]`` of ``token_weights`` in place of 1 / N, or None.

    Raises:
        ValueError: shapes differ, the denominator is not positive, or the dual clip is not above 1.
    """
    check_flat(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, mask=mask)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"a dual clip must be above 1, found {dual_clip}")
    log_ratio = neutralised(logprobs, mask) - neutralised(old_logprobs, mask)
    advantages = neutralised(advantages, mask)
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    per_token = torch.maximum(unclipped, clipped)
    dual_clipped = torch.zeros_like(mask)
    if dual_clip is not None:
        bound = -dual_clip * advantages
        dual_clipped = mask & (advantages < 0) & (per_token > bound)
        per_token = torch.where(advantages < 0, torch.minimum(per_token, bound), per_token)
    deviation = neutralised((ratio.detach() - 1).abs(), mask)
    return PolicyLoss(
        loss=aggregate(per_token, mask, denominator, weights),
        clip_fraction_sum=(mask & (clipped > unclipped)).sum(),
        dual_clip_sum=dual_clipped.sum(),
        kl_sum=masked_sum(-log_ratio.detach(), mask),
        ratio_sum=masked_sum(ratio.detach(), mask),
        ratio_deviation_max=deviation.max() if len(deviation) else deviation.sum(),
        num_tokens=mask.sum(),
    )


def sft_loss(logprobs: Tensor, mask: Tensor, denominator: float) -> Tensor:
    r"""Negative log-likelihood :math:`-\frac{1}{N} \sum_t \log\pi(a_t)` of the unmasked tokens, a scalar.

    ``logprobs [num_tokens]`` of the target tokens, ``mask [num_tokens]`` bool, ``denominator`` N: the unmasked tokens
    of the whole optimizer step over all ranks. Raises ValueError as ``token_mean`` does.
    """
    return -token_mean(logprobs, mask, denominator)
