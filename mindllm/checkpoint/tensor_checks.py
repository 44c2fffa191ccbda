"""Small helpers that both directions of the converter share."""

from collections.abc import Iterable

import torch

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LISTED = 8


def dtype_of(name: str | None) -> torch.dtype | None:
    """Return the torch dtype called ``name``, or None for None."""
    return None if name is None else _DTYPES[name]


def name_of(dtype: torch.dtype) -> str:
    """Return ``dtype`` as configs write it, e.g. ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def as_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return ``tensor`` in ``dtype``, or as it is for None."""
    return tensor if dtype is None else tensor.to(dtype)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two contiguous tensors are equal bit for bit, so that NaN equals itself and 0 differs from -0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))


def listed(names: Iterable[str]) -> str:
    """Return the first few names in order, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return ", ".join(ordered[:_LISTED]) + more
