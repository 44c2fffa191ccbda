"""The few tensor rearrangements between Hugging Face and megatron-core, each with its inverse."""

from collections.abc import Sequence

import numpy as np

from mindllm.formats.arrays import Array, from_torch, to_torch
from mindllm.models.families.architecture import Architecture
from mindllm.models.families.weights import Weight


def merge(weight: Weight, arrays: Sequence[Array], architecture: Architecture) -> Array:
    """Return the mcore tensor (``weight.mcore_shape``, contiguous) of the HF ``arrays`` (``weight.hf_shapes``)."""
    if weight.transform == "identity":
        return np.asarray(arrays[0], order="C")
    if weight.transform == "concat":
        return np.concatenate(arrays)
    if weight.transform == "unit_rows":
        return unit_rows(arrays[0])
    groups = architecture.num_query_groups
    rows = _qkv_rows(weight, architecture)
    parts = _sections(arrays[0], rows) if len(arrays) == 1 else arrays
    per_group = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(per_group, axis=1).reshape(weight.mcore_shape)


def split(weight: Weight, array: Array, architecture: Architecture) -> tuple[Array, ...]:
    """Return the HF tensors (``weight.hf_shapes``, contiguous) that :func:`merge` made ``array`` from."""
    if weight.transform in ("identity", "unit_rows"):
        return (np.asarray(array, order="C"),)
    if weight.transform == "concat":
        parts = _sections(array, [shape[0] for shape in weight.hf_shapes])
        return tuple(np.asarray(part, order="C") for part in parts)
    groups = architecture.num_query_groups
    per_group = array.reshape(groups, -1, *array.shape[1:])
    rows = _qkv_rows(weight, architecture)
    parts = _sections(per_group, [count // groups for count in rows], axis=1)
    flat = [part.reshape(count, *array.shape[1:]) for part, count in zip(parts, rows, strict=True)]
    return tuple(flat) if len(weight.hf) > 1 else (np.concatenate(flat),)


def _sections(array: Array, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Return views of ``sizes`` elements each along ``axis``."""
    return np.split(array, np.cumsum(sizes)[:-1], axis)


def _qkv_rows(weight: Weight, architecture: Architecture) -> list[int]:
    """Return the rows of query, key and value, which lie one after the other in a fused Hugging Face tensor."""
    if len(weight.hf_shapes) > 1:
        return [shape[0] for shape in weight.hf_shapes]
    heads = (architecture.num_attention_heads, architecture.num_query_groups, architecture.num_query_groups)
    return [count * architecture.head_dim for count in heads]


def unit_rows(array: Array) -> Array:
    """Return ``array`` ``[rows, columns]`` with rows of length one.

    Rows whose length already is one, to the precision of the dtype, are kept bit for bit, so that doing it again
    changes nothing.
    """
    import torch

    tensor = to_torch(array)
    lengths = torch.linalg.vector_norm(tensor, dim=1, keepdim=True, dtype=torch.float32)
    # Rounding an element changes it, and so the length, by at most half an eps.
    done = (lengths - 1.0).abs() <= max(torch.finfo(tensor.dtype).eps / 2, 1e-6)
    scaled = (tensor.float() / lengths.clamp_min(1e-12)).to(tensor.dtype)
    return from_torch(torch.where(done, tensor, scaled))


def pad_rows(array: Array, num_rows: int) -> Array:
    """Return ``array`` ``[rows, ...]`` with zero rows appended up to ``num_rows``."""
    if array.shape[0] == num_rows:
        return array
    padded = np.zeros((num_rows, *array.shape[1:]), array.dtype)
    padded[: array.shape[0]] = array
    return padded
