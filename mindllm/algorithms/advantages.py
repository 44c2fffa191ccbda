"""Advantage estimators of critic-free methods, and how a sequence's advantage reaches its tokens."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from mindllm.algorithms.scaling import scale_of

GroupEstimator = Literal["group_norm", "group_mean"]

# Rewards that differ by less than this share of the largest of them differ by float noise (1.2e-7 in fp32) only.
_NOISE = 1e-6


def _group_norm(std: Tensor, one: Tensor, eps: float) -> Tensor:
    return std + eps * one


def _group_mean(std: Tensor, one: Tensor, eps: float) -> Tensor:
    return one


# name -> f(unbiased group std [n], what 1 is in the unit of the rewards [n], eps) -> [n], what the distance from the
# group's mean is divided by
ADVANTAGE_ESTIMATORS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "group_norm": _group_norm,
    "group_mean": _group_mean,
}


def group_advantages(
    rewards: Tensor, group_ids: Tensor, estimator: GroupEstimator = "group_norm", eps: float = 1e-4
) -> Tensor:
    r"""Compare each response with the other responses to the same prompt.

    .. math::
        \text{group\_norm (GRPO):}\quad A_i = \frac{r_i - \bar r_g}{s_g + \epsilon} \qquad
        \text{group\_mean (Dr. GRPO):}\quad A_i = r_i - \bar r_g

    with mean and unbiased standard deviation over the group g of i. GRPO: https://arxiv.org/abs/2402.03300,
    Dr. GRPO: https://arxiv.org/abs/2503.20783.

    A NaN reward means that there is no opinion on that response: it counts neither in the mean nor in the deviation,
    and its advantage is 0. A group with fewer than two rewards, or whose spread is float noise, has advantage exactly 0
    (a division by ``0 + eps`` would make a gradient out of rounding). Rewards may be as large as floats are: only a
    result that no float holds is infinite, as one of ``group_mean`` may be.

    Args:
        rewards: ``[n]`` float, one per response.
        group_ids: ``[n]`` int64, equal for responses to the same prompt; any values, any order.
        estimator: a name in ``ADVANTAGE_ESTIMATORS``.
        eps: added to the deviation.

    Returns:
        ``[n]`` advantages in the dtype of ``rewards``; computed in fp64.

    Raises:
        ValueError: wrong shapes or an unknown estimator.
    """
    if rewards.dim() != 1 or rewards.shape != group_ids.shape:
        raise ValueError(
            f"rewards {tuple(rewards.shape)} and group_ids {tuple(group_ids.shape)} must be flat and of one length"
        )
    if estimator not in ADVANTAGE_ESTIMATORS:
        raise ValueError(f"unknown advantage estimator '{estimator}', allowed: {', '.join(ADVANTAGE_ESTIMATORS)}")
    _, group = torch.unique(group_ids, return_inverse=True)  # [n] 0..num_groups-1
    num_groups = int(group.max()) + 1 if len(group) else 0
    known = ~torch.isnan(rewards)
    values = torch.where(known, rewards.double(), 0.0)
    # Each group is computed in a unit of its own, 1 unless its rewards are so large that sums or squares overflow.
    one = scale_of(values.new_zeros(num_groups).scatter_reduce(0, group, values.abs(), "amax"))[group]
    values = values * one

    def group_sum(per_response: Tensor) -> Tensor:  # [n] -> [num_groups]
        return per_response.new_zeros(num_groups).index_add_(0, group, per_response)

    counts = group_sum(known.double())
    mean = group_sum(values) / counts.clamp(min=1)
    centred = torch.where(known, values - mean[group], 0.0)
    std = (group_sum(centred.square()) / (counts - 1).clamp(min=1)).sqrt()
    usable = known & ~_without_spread(centred, values, group, num_groups)[group] & (counts > 1)[group]
    advantages = centred / ADVANTAGE_ESTIMATORS[estimator](std[group], one, eps)
    return torch.where(usable, advantages, 0.0).to(rewards.dtype)


def _without_spread(centred: Tensor, values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Return ``[num_groups]`` bool: True where the rewards of the group are equal up to float noise."""
    zeros = centred.new_zeros(num_groups)
    deviation = zeros.scatter_reduce(0, group, centred.abs(), "amax")
    magnitude = zeros.scatter_reduce(0, group, values.abs(), "amax")
    return deviation <= _NOISE * magnitude


def broadcast_to_tokens(per_sequence: Tensor, lengths: Tensor) -> Tensor:
    """Give every token its sequence's value: ``[n]`` values, ``[n]`` int64 lengths -> ``[sum(lengths)]``.

    Raises ValueError when the shapes differ.
    """
    if per_sequence.dim() != 1 or per_sequence.shape != lengths.shape:
        raise ValueError(
            f"values {tuple(per_sequence.shape)} and lengths {tuple(lengths.shape)} must be flat and of one length"
        )
    return torch.repeat_interleave(per_sequence, lengths)
