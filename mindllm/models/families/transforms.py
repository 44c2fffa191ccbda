"""The few tensor rearrangements between Hugging Face and megatron-core, each with its inverse.

Imports torch, so the package's ``__init__`` does not import this module.
"""

from collections.abc import Sequence

import torch

from mindllm.models.families.architecture import Architecture
from mindllm.models.families.weights import Weight


def merge(weight: Weight, tensors: Sequence[torch.Tensor], architecture: Architecture) -> torch.Tensor:
    """Return the mcore tensor (``weight.mcore_shape``, contiguous) of the HF ``tensors`` (``weight.hf_shapes``)."""
    if weight.transform == "identity":
        return tensors[0].contiguous()
    if weight.transform == "concat":
        return torch.cat(list(tensors))
    if weight.transform == "unit_rows":
        return unit_rows(tensors[0])
    groups = architecture.num_query_groups
    rows = _qkv_rows(weight, architecture)
    parts = tensors[0].split(rows) if len(tensors) == 1 else tensors
    per_group = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(per_group, dim=1).reshape(weight.mcore_shape)


def split(weight: Weight, tensor: torch.Tensor, architecture: Architecture) -> tuple[torch.Tensor, ...]:
    """Return the HF tensors (``weight.hf_shapes``, contiguous) that :func:`merge` made ``tensor`` from."""
    if weight.transform in ("identity", "unit_rows"):
        return (tensor.contiguous(),)
    if weight.transform == "concat":
        return tuple(part.contiguous() for part in tensor.split([shape[0] for shape in weight.hf_shapes]))
    groups = architecture.num_query_groups
    per_group = tensor.reshape(groups, -1, *tensor.shape[1:])
    rows = _qkv_rows(weight, architecture)
    parts = per_group.split([count // groups for count in rows], dim=1)
    flat = [part.reshape(count, *tensor.shape[1:]) for part, count in zip(parts, rows, strict=True)]
    return tuple(flat) if len(weight.hf) > 1 else (torch.cat(flat),)


def _qkv_rows(weight: Weight, architecture: Architecture) -> list[int]:
    """Return the rows of query, key and value, which lie one after the other in a fused Hugging Face tensor."""
    if len(weight.hf_shapes) > 1:
        return [shape[0] for shape in weight.hf_shapes]
    heads = (architecture.num_attention_heads, architecture.num_query_groups, architecture.num_query_groups)
    return [count * architecture.head_dim for count in heads]


def unit_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` ``[rows, columns]`` with rows of length one.

    Rows whose length already is one, to the precision of the dtype, are kept bit for bit, so that doing it again
    changes nothing.
    """
    lengths = torch.linalg.vector_norm(tensor, dim=1, keepdim=True, dtype=torch.float32)
    # Rounding an element changes it, and so the length, by at most half an eps.
    done = (lengths - 1.0).abs() <= max(torch.finfo(tensor.dtype).eps / 2, 1e-6)
    scaled = (tensor.float() / lengths.clamp_min(1e-12)).to(tensor.dtype)
    return torch.where(done, tensor, scaled)


def pad_rows(tensor: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return ``tensor`` ``[rows, ...]`` with zero rows appended up to ``num_rows``."""
    if tensor.shape[0] == num_rows:
        return tensor
    padded = tensor.new_zeros((num_rows, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    return padded
