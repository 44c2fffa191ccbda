"""From per-token values to one number."""

import torch
from torch import Tensor


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
