"""Tensors of any checkpoint as numpy arrays; importing torch would take longer than copying a small model.

numpy has no bfloat16 and no fp8. Arrays of them hold opaque elements of that size: whatever only moves elements works
on them as on others, and what computes goes through torch, imported only then.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
BFLOAT16, FLOAT8_E4M3FN = np.dtype("V2"), np.dtype("V1")

# By the name that torch and configs use.
DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype("f8"),
    "float32": np.dtype("f4"),
    "float16": np.dtype("f2"),
    "bfloat16": BFLOAT16,
    "float8_e4m3fn": FLOAT8_E4M3FN,
    "int64": np.dtype("i8"),
    "int32": np.dtype("i4"),
    "int16": np.dtype("i2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BF16_EXPONENT = np.uint16(0x7F80)


def name_of(dtype: np.dtype[Any]) -> str:
    """Return ``dtype`` as torch and configs write it, e.g. ``bfloat16``."""
    return _NAMES[dtype]


def to_torch(array: Array) -> "torch.Tensor":
    """Return a tensor that shares the memory of ``array``."""
    import torch

    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, name_of(array.dtype)))


def from_torch(tensor: "torch.Tensor") -> Array:
    """Return an array that shares the memory of a CPU ``tensor``."""
    import torch

    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    if dtype.kind != "V":
        return tensor.detach().numpy()
    return tensor.detach().view(torch.int16 if dtype.itemsize == 2 else torch.int8).numpy().view(dtype)


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``array`` in another floating-point dtype, or itself."""
    if array.dtype == dtype:
        return array
    import torch

    return from_torch(to_torch(array).to(getattr(torch, name_of(dtype))))


def raw(array: Array) -> memoryview:
    """Return the bytes of a contiguous array, as a view that reads and writes it."""
    return array.reshape(-1).view(np.uint8).data


def is_finite(array: Array) -> bool:
    """Return whether no element of a floating-point ``array`` is NaN or infinite."""
    if array.dtype == BFLOAT16:
        return not bool(((array.view(np.uint16) & _BF16_EXPONENT) == _BF16_EXPONENT).any())
    return bool(np.isfinite(array).all())


def same_bits(first: Array, second: Array) -> bool:
    """Return whether two contiguous arrays are equal bit for bit, so that NaN equals itself and 0 differs from -0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return np.array_equal(np.frombuffer(raw(first), np.uint8), np.frombuffer(raw(second), np.uint8))
