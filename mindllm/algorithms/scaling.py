"""Arithmetic on numbers so large that their sums or squares overflow."""

import torch
from torch import Tensor

_LARGE = 2.0**500  # below it neither squares nor sums overflow in fp64


def scale_of(largest: Tensor) -> Tensor:
    """Return the power of two with which numbers up to ``largest`` (float64, any shape) are to be multiplied.

    They are then below 4. It is 1 where they are not large, so that ordinary results stay as they are to the last bit;
    a product with a power of two is exact otherwise.
    """
    exponent = torch.frexp(largest).exponent - 2
    return torch.where(largest > _LARGE, torch.ldexp(torch.ones_like(largest), -exponent), 1.0)


def mean(values: Tensor) -> float:
    """Return the mean of finite ``values`` (any shape), in fp64 and without overflow; NaN if there are none."""
    if values.numel() == 0:
        return float("nan")
    exact = values.double()
    scale = scale_of(exact.abs().max())
    return float((exact * scale).mean() / scale)
