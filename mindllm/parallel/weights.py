"""Parameters in full and by name, whatever the layout: what one world of ranks hands to another."""

import zlib
from collections.abc import Iterator

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch import Tensor

from mindllm.parallel.schedule import unwrap


def named_parameters(chunks: list[torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """This rank's parameters under names with global layer numbers; a tied copy on the last stage is left out."""
    for chunk in chunks:
        model = unwrap(chunk)
        for name, parameter in model.named_parameters():
            is_tied_copy = name == "output_layer.weight" and model.share_embeddings_and_output_weights
            if not is_tied_copy:
                yield _with_global_layer(model, name), parameter


def _with_global_layer(model: torch.nn.Module, name: str) -> str:
    head, marker, rest = name.partition("layers.")
    if not marker:
        return name
    local, _, tail = rest.partition(".")
    return f"{head}layers.{model.decoder.layers[int(local)].layer_number - 1}.{tail}"


def gather_full(name: str, parameter: Tensor, vocab_size: int) -> Tensor:
    """The whole tensor, on every tensor-parallel rank (collective), without vocabulary padding."""
    if getattr(parameter, "tensor_model_parallel", False) and mpu.get_tensor_model_parallel_world_size() > 1:
        group = mpu.get_tensor_model_parallel_group()
        shards = [torch.empty_like(parameter) for _ in range(group.size())]
        dist.all_gather(shards, parameter.detach().contiguous(), group=group)
        full = _join(name, shards, parameter.partition_dim)
    else:
        full = parameter.detach()
    return full[:vocab_size] if _is_vocabulary(name) else full


def slice_full(name: str, full: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of ``full``, in the shape of ``parameter``; padding rows of the vocabulary are zero."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return full
    rank, size = mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()
    if _is_vocabulary(name):
        missing = parameter.shape[0] * size - full.shape[0]
        full = torch.nn.functional.pad(full, (0, 0, 0, missing))
    if _is_gate_and_up(name):
        return torch.cat([half.chunk(size)[rank] for half in full.chunk(2)])
    return full.chunk(size, dim=parameter.partition_dim)[rank]


def _join(name: str, shards: list[Tensor], dim: int) -> Tensor:
    if _is_gate_and_up(name):
        halves = [shard.chunk(2) for shard in shards]
        return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    return torch.cat(shards, dim=dim)


def _is_gate_and_up(name: str) -> bool:
    """Each rank's rows are its gate rows, then its up rows."""
    return name.endswith("mlp.linear_fc1.weight")


def _is_vocabulary(name: str) -> bool:
    return name in ("embedding.word_embeddings.weight", "output_layer.weight")


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a tensor's bytes."""
    return zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
