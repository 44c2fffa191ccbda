"""Full tensors under Hugging Face names from what every rank holds; ranks that hold the same part must agree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch import Tensor

from mindllm.convert.plan import make_recipe
from mindllm.formats.arrays import from_torch, to_torch
from mindllm.models.families import Architecture
from mindllm.models.families.transforms import split
from mindllm.parallel.schedule import unwrap


@dataclass(frozen=True)
class Piece:
    """One rank's part of a tensor: its megatron-core key and the region it fills."""

    key: str
    global_shape: tuple[int, ...]
    region: tuple[slice, ...]
    data: Tensor


@torch.no_grad()
def local_pieces(chunks: list[Any], read: Callable[[torch.nn.Parameter], Tensor]) -> list[Piece]:
    """This rank's part of every parameter, with ``read(parameter)`` in the parameter's place."""
    parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
    values = [read(parameter).clone() for parameter in parameters]
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        _overwrite(parameters, values)
        pieces = []
        for chunk in chunks:
            state = unwrap(chunk).sharded_state_dict()
            apply_factories(state)
            pieces += [_piece(tensor) for tensor in _sharded_tensors(state)]
        return pieces
    finally:
        _overwrite(parameters, kept)


def gradients(chunks: list[Any]) -> list[Piece]:
    """This rank's part of every accumulated gradient."""
    return local_pieces(chunks, lambda parameter: parameter.main_grad)


def weights(chunks: list[Any]) -> list[Piece]:
    """This rank's part of every weight."""
    return local_pieces(chunks, lambda parameter: parameter.detach())


def assemble(pieces: list[Piece], arch: Architecture) -> dict[str, Tensor]:
    """Put the pieces of all ranks together; padding rows of the vocabulary must be exactly zero."""
    full: dict[str, Tensor] = {}
    for piece in pieces:
        target = full.setdefault(piece.key, torch.full(piece.global_shape, torch.nan))
        assert tuple(target.shape) == piece.global_shape, piece.key
        region = target[piece.region]
        if bool(region.isnan().any()):
            assert bool(region.isnan().all()), f"pieces of {piece.key} overlap"
            target[piece.region] = piece.data
        else:
            assert torch.equal(region, piece.data), f"ranks disagree on their common part of {piece.key}"
    recipe = make_recipe(arch, arch.vocab_size, None)
    assert set(full) == {weight.mcore for weight in recipe.weights}
    assert not any(bool(tensor.isnan().any()) for tensor in full.values()), "a part belongs to no rank"
    named = {}
    for weight in recipe.weights:
        tensor = full[weight.mcore] if weight.layer is None else full[weight.mcore][weight.layer]
        if weight.has_vocab_rows:
            assert not bool(tensor[arch.vocab_size :].any()), f"padding rows of {weight.mcore} are not zero"
            tensor = tensor[: arch.vocab_size]
        named.update(zip(weight.hf, map(to_torch, split(weight, from_torch(tensor), arch)), strict=True))
    return named


def relative_errors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference of each tensor, relative to the reference's largest entry."""
    assert set(ours) == set(theirs)
    return {name: float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()) for name in theirs}


def assert_equal_tensors(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float, what: str) -> None:
    """Every tensor within ``tolerance`` of the reference's largest entry; the message names the worst."""
    errors = relative_errors(ours, theirs)
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= tolerance, f"{what}: {worst} differs by {errors[worst]:.2e} of its largest entry"


def _overwrite(parameters: list[torch.nn.Parameter], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value)


def _sharded_tensors(state: Any) -> Iterator[ShardedTensor]:
    if isinstance(state, ShardedTensor):
        yield state
    elif isinstance(state, dict | list):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _sharded_tensors(value)


def _piece(tensor: ShardedTensor) -> Piece:
    axes = tensor.prepend_axis_num
    start = tensor.global_offset
    leading = tuple(slice(offset, offset + 1) for offset in start[:axes])
    within = tuple(slice(offset, offset + size) for offset, size in zip(start[axes:], tensor.local_shape, strict=True))
    data = tensor.data.detach().clone()[(None,) * axes]
    return Piece(tensor.key, tuple(tensor.global_shape), (*leading, *within), data)
