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
    groups = architecture.num_query_groups
    per_group = [tensor.reshape(groups, -1, *tensor.shape[1:]) for tensor in tensors]
    return torch.cat(per_group, dim=1).reshape(weight.mcore_shape)


def split(weight: Weight, tensor: torch.Tensor, architecture: Architecture) -> tuple[torch.Tensor, ...]:
    """Return the HF tensors (``weight.hf_shapes``, contiguous) that :func:`merge` made ``tensor`` from."""
    if weight.transform == "identity":
        return (tensor.contiguous(),)
    rows = [shape[0] for shape in weight.hf_shapes]
    if weight.transform == "concat":
        return tuple(part.contiguous() for part in tensor.split(rows))
    groups = architecture.num_query_groups
    per_group = tensor.reshape(groups, -1, *tensor.shape[1:])
    parts = per_group.split([count // groups for count in rows], dim=1)
    return tuple(part.reshape(shape) for part, shape in zip(parts, weight.hf_shapes, strict=True))


def pad_rows(tensor: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return ``tensor`` ``[rows, ...]`` with zero rows appended up to ``num_rows``."""
    if tensor.shape[0] == num_rows:
        return tensor
    padded = tensor.new_zeros((num_rows, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    return padded
