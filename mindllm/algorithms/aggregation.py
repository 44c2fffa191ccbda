"""From per-token values to one number."""

from typing import Literal, get_args

import torch
from torch import Tensor

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


def check_flat(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are ``[num_tokens]`` of the same length.

    A silent broadcast of ``[1]`` against ``[num_tokens]`` gives a plausible loss that is wrong, hence the check.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"per-token tensors must be flat and of one length, found {shapes}")


def neutralised(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``values [num_tokens]`` with 0 where ``mask`` is False.

    Done before anything is computed from the values: a -inf or NaN behind the mask would otherwise come back as a NaN
    gradient (0 * inf in the backward pass), even if the result itself is masked.
    """
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum ``values [num_tokens]`` where ``mask [num_tokens]`` (bool) is True; what is masked may be inf or NaN.

    Returns a scalar of the dtype of ``values``. Raises ValueError when the shapes differ.
    """
    check_flat(values=values, mask=mask)
    return neutralised(values, mask).sum()


def token_mean(values: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Return ``sum_t mask_t * values_t / denominator``, this part's share of the mean over a whole optimizer step.

    ``denominator`` is the number of unmasked tokens of the optimizer step over all micro-batches and ranks, never of
    this call's tensors: shares of parts then add up to the mean of the whole, whatever the parts are (the token-level
    loss of DAPO, https://arxiv.org/abs/2503.14476). Raises ValueError when it is not positive.
    """
    if not denominator > 0:
        raise ValueError(f"a denominator must be positive, found {denominator}")
    return masked_sum(values, mask) / denominator


def aggregate(values: Tensor, mask: Tensor, denominator: float, weights: Tensor | None) -> Tensor:
    """Return ``token_mean``, or with weights ``sum_t mask_t * weights_t * values_t``, this part's share of the loss.

    ``weights [num_tokens]`` are those of ``token_weights`` for the tokens of this part: they hold the denominators, so
    ``denominator`` is not used. Raises ValueError as ``token_mean`` does.
    """
    if weights is None:
        return token_mean(values, mask, denominator)
    check_flat(values=values, weights=weights)
    return masked_sum(values * weights.to(values.dtype), mask)


def token_weights(mask: Tensor, lengths: Tensor, aggregation: Aggregation, max_length: int) -> Tensor:
    r"""Weight of every token in a loss :math:`\sum_t w_t L_t`, for the sequences of a whole optimizer step.

    =======================  =============================================  =========================================
    aggregation              loss                                           weight of an unmasked token of sequence i
    =======================  =============================================  =========================================
    token-mean               mean over all tokens                           1 / sum of all n_i
    seq-mean-token-sum       mean over sequences of the sum over tokens     1 / S
    seq-mean-token-mean      mean over sequences of the mean over tokens    1 / (S n_i)
    seq-mean-token-sum-norm  as seq-mean-token-sum, over a fixed length     1 / (S max_length)
    =======================  =============================================  =========================================

    with n_i unmasked tokens in sequence i and S sequences that have any. DAPO: https://arxiv.org/abs/2503.14476
    (token-mean), GRPO: https://arxiv.org/abs/2402.03300 (seq-mean-token-mean), Dr. GRPO:
    https://arxiv.org/abs/2503.20783 (seq-mean-token-sum-norm). Computed before sequences are dealt to ranks and
    micro-batches, the weights make the sum of all parts independent of the division.

    Args:
        mask: ``[num_tokens]`` bool, True = trained.
        lengths: ``[n]`` int64 tokens of each sequence, masked ones too.
        aggregation: a name above.
        max_length: the fixed length of ``seq-mean-token-sum-norm``, the longest response that may be generated.

    Returns:
        ``[num_tokens]`` fp64, 0 where masked.

    Raises:
        ValueError: an unknown aggregation, wrong shapes or a length that is not positive.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation '{aggregation}', allowed: {', '.join(AGGREGATIONS)}")
    if lengths.dim() != 1 or mask.shape != (int(lengths.sum()),):
        raise ValueError(f"mask {tuple(mask.shape)} must be flat with sum(lengths) = {int(lengths.sum())} tokens")
    if max_length < 1:
        raise ValueError(f"max_length must be positive, found {max_length}")
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=mask.device), lengths)  # [num_tokens]
    counts = torch.zeros(len(lengths), dtype=torch.float64, device=mask.device).index_add_(0, owner, mask.double())
    sequences = (counts > 0).sum().clamp(min=1)
    denominators = {
        "token-mean": counts.sum().expand(len(lengths)),
        "seq-mean-token-sum": sequences.expand(len(lengths)),
        "seq-mean-token-mean": sequences * counts,
        "seq-mean-token-sum-norm": (sequences * max_length).expand(len(lengths)),
    }[aggregation]
    return torch.where(mask, 1.0 / denominators.double()[owner], 0.0)
