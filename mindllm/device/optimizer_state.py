"""The state of megatron's ``DistributedOptimizer``, described for a checkpoint parameter by parameter.

megatron's own ``fully_reshardable`` description first gathers whole gradient-buffer-sized copies of the weights and of
both moments: at one data-parallel rank 4.5 GiB for a checkpoint of 2 GiB. The format described here is the same.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_STATES = ("param", "exp_avg", "exp_avg_sq")


def describe(original: Any) -> Any:
    """Return what replaces ``DistributedOptimizer.sharded_param_state_fully_reshardable``, whose original is given.

    Where a rank has its parameters' whole state, the description holds the very tensors: nothing is copied to be saved,
    and a load fills them in place. Else each parameter's state is gathered on one data-parallel rank, a different one
    for each, which writes it; a load there is megatron's own.
    """

    @functools.wraps(original)
    def sharded_param_state(
        optimizer: Any, model_state: dict[str, Any], is_loading: bool = False, metadata: dict[str, Any] | None = None
    ) -> dict[int, dict[str, Any]]:
        from megatron.core.dist_checkpointing.dict_utils import nested_values
        from megatron.core.dist_checkpointing.mapping import ShardedTensor
        from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories

        is_whole = optimizer.data_parallel_group.size() == 1
        if is_loading and not is_whole:
            return original(optimizer, model_state, is_loading, metadata)
        of_model, _ = extract_sharded_tensors_and_factories(model_state)
        described = {sharded.data: sharded for sharded in nested_values(of_model)}
        state: dict[int, dict[str, Any]] = {}
        for number, parameter, tensors in _whole_states(optimizer) if is_whole else _gathered_states(optimizer):
            sharded = described[parameter]
            # A parameter that is replicated over data-parallel ranks is written by rank 0; its state by who has it.
            replica = (*sharded.replica_id[:-1], 0) if not is_whole else sharded.replica_id
            state[number] = {
                name: replace(
                    sharded,
                    key=f"optimizer.state.{name}.{sharded.key}",
                    data=tensor,
                    replica_id=replica,
                    **({"dtype": tensor.dtype} if isinstance(sharded, ShardedTensor) else {}),
                )
                for name, tensor in tensors.items()
            }
        return state

    return sharded_param_state


def _parameters(optimizer: Any) -> Iterator[tuple[torch.nn.Parameter, tuple[int, int]]]:
    """Parameters in the order of megatron's format, each with the range [start, stop) of it that this rank updates."""
    for buffer, ranges in zip(optimizer.buffers, optimizer.gbuf_ranges, strict=True):
        (buckets,) = ranges.values()
        own = {parameter: found["param"] for bucket in buckets for parameter, found in bucket["param_map"].items()}
        for parameter in buffer.param_index_map:
            yield parameter, ((own[parameter].start, own[parameter].end) if parameter in own else (0, 0))


def _own_state(optimizer: Any, parameter: torch.nn.Parameter) -> dict[str, Tensor]:
    """This rank's part of a parameter's state, each flat, on the optimizer's device."""
    found = optimizer._get_main_param_and_optimizer_states(parameter)
    return {name: found[name].detach() for name in _STATES}


def _whole_states(optimizer: Any) -> Iterator[tuple[int, torch.nn.Parameter, dict[str, Tensor]]]:
    """Number, parameter and state tensors, which are the optimizer's own, in the parameter's shape."""
    for number, (parameter, _) in enumerate(_parameters(optimizer)):
        tensors = _own_state(optimizer, parameter)
        yield number, parameter, {name: tensor.view(parameter.shape) for name, tensor in tensors.items()}


def _gathered_states(optimizer: Any) -> Iterator[tuple[int, torch.nn.Parameter, dict[str, Tensor]]]:
    """The same for the parameters whose state this data-parallel rank writes, on the host (collective)."""
    group = optimizer.data_parallel_group_gloo
    parameters = list(_parameters(optimizer))
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(group.size())]
    dist.all_gather_object(ranges, [own for _, own in parameters], group=group)
    load = [0] * group.size()
    for number, (parameter, _) in enumerate(parameters):
        writer = load.index(min(load))
        load[writer] += parameter.numel()
        tensors = _gather(optimizer, parameter, [of_rank[number] for of_rank in ranges], writer)
        if tensors:
            yield number, parameter, {name: tensor.view(parameter.shape) for name, tensor in tensors.items()}


def _gather(
    optimizer: Any, parameter: torch.nn.Parameter, ranges: list[tuple[int, int]], writer: int
) -> dict[str, Tensor]:
    """A parameter's whole state, flat, on ``writer``, to which every other rank sends its range; {} on the others."""
    group = optimizer.data_parallel_group_gloo
    rank = group.rank()
    start, stop = ranges[rank]
    own = _own_state(optimizer, parameter) if stop > start else {}
    if rank != writer:
        for tensor in own.values():
            dist.send(tensor.cpu(), group=group, group_dst=writer)
        return {}
    whole = {name: torch.empty(parameter.numel(), dtype=torch.float32) for name in _STATES}
    for source, (begin, end) in enumerate(ranges):
        for name, tensor in whole.items():
            if source == rank and own:
                tensor[begin:end] = own[name]
            elif source != rank and end > begin:
                dist.recv(tensor[begin:end], group=group, group_src=source)
    return whole
