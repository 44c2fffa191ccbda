r"""Per-token estimators of KL(policy || reference) from the log-probs of sampled tokens.

With :math:`d = \log\pi(a) - \log\pi_{ref}(a)` for a token a sampled from the policy
(http://joschu.net/blog/kl-approx.html):

====================  =====================================  =====================================================
name (aliases)        value                                  remarks
====================  =====================================  =====================================================
kl (k1)               d                                      unbiased, may be negative
abs                   abs(d)
mse (k2)              d^2 / 2                                as a loss its gradient is the unbiased KL gradient
low_var_kl (k3)       exp(-d) - 1 + d                        unbiased, never negative; clamped, see below
low_var_kl+ (k3+)     that of low_var_kl                     straight-through: value of k3, gradient of k2
====================  =====================================  =====================================================

k3 explodes for tokens that the policy has all but ruled out, so d is clamped to ±20 and the result to ±10. A clamped
token keeps its value but has no gradient; ``kl_loss`` counts them.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mindllm.algorithms.aggregation import aggregate, check_flat, masked_sum, neutralised

INPUT_CLAMP = 20.0
OUTPUT_CLAMP = 10.0


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return ``d = logprobs - ref_logprobs``, ``[num_tokens]``."""
    return logprobs - ref_logprobs


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return ``|d|``, ``[num_tokens]``."""
    return (logprobs - ref_logprobs).abs()


def k2(
    logprobs: Tensor, ref_logprobs: Tensor, input_clamp: float | None = None, output_clamp: float | None = None
) -> Tensor:
    """Return ``d^2 / 2``, ``[num_tokens]``; with ``d`` and the result clamped to ± the given bounds, None = not."""
    return _clamp(0.5 * _clamp(logprobs - ref_logprobs, input_clamp).square(), output_clamp)


def k3(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    input_clamp: float | None = INPUT_CLAMP,
    output_clamp: float | None = OUTPUT_CLAMP,
) -> Tensor:
    """Return ``exp(-d) - 1 + d``, ``[num_tokens]``; with ``d`` and the result clamped to ± the bounds, None = not."""
    minus_d = _clamp(ref_logprobs - logprobs, input_clamp)
    return _clamp(minus_d.exp() - minus_d - 1, output_clamp)


def k3_straight_through(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return the value of ``k3`` with the gradient of ``k2``, ``[num_tokens]``."""
    gradient = k2(logprobs, ref_logprobs)
    return gradient - gradient.detach() + k3(logprobs, ref_logprobs).detach()


def _clamp(values: Tensor, bound: float | None) -> Tensor:
    return values if bound is None else values.clamp(-bound, bound)


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
    "low_var_kl+": k3_straight_through,
    "k3+": k3_straight_through,
}


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Return the per-token estimate ``[num_tokens]``, differentiable in ``logprobs``; see the module for the kinds.

    Raises ValueError on an unknown kind or on tensors that are not flat and of one length.
    """
    if kind not in KL_ESTIMATORS:
        raise ValueError(f"unknown KL estimator '{kind}', allowed: {', '.join(KL_ESTIMATORS)}")
    check_flat(logprobs=logprobs, ref_logprobs=ref_logprobs)
    return KL_ESTIMATORS[kind](logprobs, ref_logprobs)


class KlLoss(NamedTuple):
    """A KL term of a loss, and its metrics as sums over this call's tokens (detached scalars)."""

    loss: Tensor  # sum of the estimates / denominator; multiply by the coefficient
    kl_sum: Tensor
    clamped_sum: Tensor  # number of tokens whose estimate is clamped and therefore has no gradient
    num_tokens: Tensor


def kl_loss(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, kind: str, denominator: float, weights: Tensor | None = None
) -> KlLoss:
    """Aggregate ``kl_penalty`` over the unmasked tokens; all tensors ``[num_tokens]``, mask bool.

    ``denominator``: unmasked tokens of the whole optimizer step, see ``token_mean``; ``weights``: of ``token_weights``
    in its place, or None. Masked log-probs may be -inf. Raises ValueError as ``kl_penalty`` and ``token_mean`` do.
    """
    check_flat(logprobs=logprobs, ref_logprobs=ref_logprobs, mask=mask)
    logprobs, ref_logprobs = neutralised(logprobs, mask), neutralised(ref_logprobs, mask)
    penalty = kl_penalty(logprobs, ref_logprobs, kind)
    return KlLoss(
        loss=aggregate(penalty, mask, denominator, weights),
        kl_sum=masked_sum(penalty.detach(), mask),
        clamped_sum=_clamped(logprobs, ref_logprobs, penalty, kind),
        num_tokens=mask.sum(),
    )


@torch.no_grad()
def _clamped(logprobs: Tensor, ref_logprobs: Tensor, penalty: Tensor, kind: str) -> Tensor:
    if KL_ESTIMATORS[kind] is not k3:
        return torch.zeros((), dtype=torch.int64, device=penalty.device)
    return (((logprobs - ref_logprobs).abs() > INPUT_CLAMP) | (penalty >= OUTPUT_CLAMP)).sum()
