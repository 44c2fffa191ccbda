"""Loss of a reward model on preference pairs."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from mindllm.algorithms.aggregation import check_flat


class PairwiseLoss(NamedTuple):
    """A loss over pairs, and its metrics as sums over this call's pairs (detached scalars)."""

    loss: Tensor  # sum over pairs / denominator
    accuracy_sum: Tensor  # pairs whose chosen one scores higher; a tie is half right
    score_difference_sum: Tensor  # of chosen - rejected
    num_pairs: Tensor


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | None, denominator: float) -> PairwiseLoss:
    r"""Negative log-likelihood that the chosen response beats the rejected one.

    .. math::
        L = -\frac{1}{N} \sum_i \log \sigma\left(s^+_i - s^-_i - m_i\right)

    Bradley and Terry, 1952; for reward models https://arxiv.org/abs/2203.02155, with a margin
    https://arxiv.org/abs/2307.09288.

    Args:
        chosen: ``[num_pairs]`` scores of the chosen responses.
        rejected: ``[num_pairs]`` scores of the rejected ones.
        margin: ``[num_pairs]`` by how much the chosen one should win, or None for 0.
        denominator: N, the pairs of the whole optimizer step over all ranks.

    Raises:
        ValueError: shapes differ or the denominator is not positive.
    """
    check_flat(chosen=chosen, rejected=rejected, margin=chosen if margin is None else margin)
    if not denominator > 0:
        raise ValueError(f"a denominator must be positive, found {denominator}")
    difference = chosen - rejected
    won_by = difference.detach()
    logits = difference if margin is None else difference - margin
    return PairwiseLoss(
        loss=-logsigmoid(logits).sum() / denominator,
        accuracy_sum=torch.where(won_by == 0, 0.5, (won_by > 0).to(won_by.dtype)).sum(),
        score_difference_sum=won_by.sum(),
        num_pairs=torch.tensor(len(chosen), device=chosen.device),
    )
