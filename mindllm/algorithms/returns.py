"""Token-level rewards and generalised advantage estimation, for methods with a critic."""

import torch
from torch import Tensor


def token_rewards(scores: Tensor, kl: Tensor | None, kl_coef: float, lengths: Tensor) -> Tensor:
    r"""Spread what a response earned over its tokens: the KL penalty on each, the score on the last.

    .. math::
        r_t = -\beta\, \mathrm{KL}_t + [t = T]\; \mathrm{score}

    for the tokens 1..T of a response (https://arxiv.org/abs/2203.02155, https://arxiv.org/abs/1909.08593). A response
    without tokens has no place for its score: the score is lost, and ``(lengths == 0).sum()`` counts such responses.

    Args:
        scores: ``[n]``, one per response; NaN is not replaced here.
        kl: ``[num_tokens]`` estimates against the reference, or None for no penalty.
        kl_coef: beta.
        lengths: ``[n]`` int64 tokens of each response.

    Returns:
        ``[num_tokens]`` in the wider of the two dtypes.

    Raises:
        ValueError: wrong shapes.
    """
    num_tokens = _num_tokens(lengths)
    if scores.shape != lengths.shape:
        raise ValueError(f"scores {tuple(scores.shape)} and lengths {tuple(lengths.shape)} must be of one length")
    if kl is not None and kl.shape != (num_tokens,):
        raise ValueError(f"kl {tuple(kl.shape)} must have one value for each of the {num_tokens} tokens")
    rewards = scores.new_zeros(num_tokens) if kl is None else -kl_coef * kl
    rewards = rewards.to(torch.promote_types(rewards.dtype, scores.dtype))
    has_tokens = lengths > 0
    last = lengths.cumsum(0)[has_tokens] - 1  # [responses with tokens]
    return rewards.index_add(0, last, scores[has_tokens].to(rewards.dtype))


def gae(
    rewards: Tensor, values: Tensor, lengths: Tensor, gamma: float, lam: float, bootstrap: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Generalised advantage estimation within each response (https://arxiv.org/abs/1506.02438).

    .. math::
        \delta_t = r_t + \gamma V_{t+1} - V_t, \qquad A_t = \delta_t + \gamma \lambda A_{t+1}, \qquad R_t = A_t + V_t

    where :math:`V_t` is the value of the state in which token t is chosen, :math:`A_{T+1} = 0`, and :math:`V_{T+1}` is
    0 (nothing follows the end token) or the bootstrap value.

    Args:
        rewards: ``[num_tokens]``, see ``token_rewards``.
        values: ``[num_tokens]``.
        lengths: ``[n]`` int64 tokens of each response; all of them count, an empty response has none.
        gamma: discount.
        lam: decay of the sum of errors; 1 is Monte Carlo, 0 one step.
        bootstrap: ``[n]`` value of the state after the last token (0 where the response ended), or None for zeros.

    Returns:
        Advantages and returns, each ``[num_tokens]`` in the wider of the two dtypes; computed in fp64.

    Raises:
        ValueError: wrong shapes.
    """
    num_tokens = _num_tokens(lengths)
    if rewards.shape != (num_tokens,) or values.shape != (num_tokens,):
        raise ValueError(
            f"rewards {tuple(rewards.shape)} and values {tuple(values.shape)} must have one value for each of the "
            f"{num_tokens} tokens"
        )
    if bootstrap is not None and bootstrap.shape != lengths.shape:
        raise ValueError(f"bootstrap {tuple(bootstrap.shape)} and lengths {tuple(lengths.shape)} must be of one length")
    dtype = torch.promote_types(rewards.dtype, values.dtype)
    values = values.double()
    deltas = rewards.double() + gamma * _next_values(values, lengths, bootstrap) - values
    advantages = _discounted_sums(deltas, lengths, gamma * lam)
    return advantages.to(dtype), (advantages + values).to(dtype)


def _num_tokens(lengths: Tensor) -> int:
    if lengths.dim() != 1 or lengths.dtype.is_floating_point:
        raise ValueError(f"lengths must be flat whole numbers, found {tuple(lengths.shape)} of {lengths.dtype}")
    return int(lengths.sum())


def _next_values(values: Tensor, lengths: Tensor, bootstrap: Tensor | None) -> Tensor:
    """``[num_tokens]``: the value one token later, and behind the last token the bootstrap value or 0."""
    shifted = torch.cat([values[1:], values.new_zeros(1)])[: len(values)]
    has_tokens = lengths > 0
    last = lengths.cumsum(0)[has_tokens] - 1
    shifted[last] = 0.0 if bootstrap is None else bootstrap[has_tokens].to(values.dtype)
    return shifted


def _discounted_sums(deltas: Tensor, lengths: Tensor, decay: float) -> Tensor:
    """``[num_tokens]``: ``sum_k decay^k deltas[t + k]`` up to the end of the response of t."""
    if len(deltas) == 0:
        return deltas
    longest = int(lengths.max())
    row = torch.repeat_interleave(torch.arange(len(lengths), device=deltas.device), lengths)
    from_end = lengths.cumsum(0)[row] - 1 - torch.arange(len(deltas), device=deltas.device)
    # Responses as rows that end together: all begin the recursion in the last column, and what lies left of a
    # response's first token is never read.
    columns = deltas.new_zeros(longest, len(lengths))
    columns[longest - 1 - from_end, row] = deltas
    total = deltas.new_zeros(len(lengths))
    for column in reversed(columns.unbind(0)):
        total = column.add_(total, alpha=decay)
    return columns[longest - 1 - from_end, row]
