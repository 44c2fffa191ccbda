"""Checks of layouts and processes: what is split must divide, who shares must match."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindllm.config.check_names import HOMES, WHO, Names
from mindllm.config.pool import SHARED, PoolRole
from mindllm.config.roles import RoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.settle_pool import same_layout
from mindllm.divisibility import TensorParallelSizes, rows_of_query_key_value


def check_layouts(config: RunConfig, name: Names) -> Iterator[str]:
    """Yield a sentence for every role that cannot be split as asked or has the wrong number of processes."""
    for role, keys in config.roles().items():
        yield from _layout(role, keys, name)
        if config.resource_pool.owner(role) == role:
            yield from _divisible(role, keys, config.world_size(role))
        else:
            yield from _shared(config, role)
    yield from _generation(config, name)
    shares = all(config.resource_pool.owner(role) == SHARED for role in config.roles())
    alone = config.resource_pool.world_size(SHARED) == 1 and shares
    if config.training.executor == "inline" and not alone:
        yield (
            "training.executor inline runs one process for all roles, but resource_pool and the parallel sizes ask "
            "for more; write ray"
        )


def _layout(role: PoolRole, keys: RoleConfig, name: Names) -> Iterator[str]:
    tp, pp = keys.tensor_model_parallel_size, keys.pipeline_model_parallel_size
    chunk = keys.num_layers_per_virtual_pipeline_stage
    layers = keys.model_keys.get("num_layers")
    if chunk is not None and pp == 1:
        yield (
            f"{name('num_layers_per_virtual_pipeline_stage', role)} needs pipeline_model_parallel_size > 1 "
            f"(it is 1 for {WHO[role]})"
        )
    yield from _tensor_split(name("tensor_model_parallel_size", role), tp, WHO[role], keys.model_keys)
    if layers is not None and layers % pp:
        yield f"{name('pipeline_model_parallel_size', role)} ({pp}) must divide {WHO[role]}'s {layers} layers"
    elif layers is not None and chunk is not None and (layers // pp) % chunk:
        yield (
            f"{name('num_layers_per_virtual_pipeline_stage', role)} ({chunk}) must divide the {layers // pp} layers "
            f"of each pipeline stage of {WHO[role]}"
        )


def _divisible(role: PoolRole, keys: RoleConfig, world: int) -> Iterator[str]:
    tp, pp = keys.tensor_model_parallel_size, keys.pipeline_model_parallel_size
    if world <= 0:
        yield f"resource_pool.{role}: num_gpus_for_infer takes all of its processes, so none is left to train"
    elif world % (tp * pp):
        yield (
            f"resource_pool.{role} ({world} processes) must be a multiple of tensor_model_parallel_size x "
            f"pipeline_model_parallel_size ({tp} x {pp})"
        )


def _shared(config: RunConfig, role: PoolRole) -> Iterator[str]:
    owner = config.resource_pool.owner(role)
    host, guest = config.roles()[owner], config.roles()[role]
    if not same_layout(host, guest):
        yield (
            f"resource_pool.{role} is {owner}, but roles that share processes need the same TP, PP and VPP; write "
            f"a number of processes, or {HOMES[role]}.tensor_model_parallel_size: {host.tensor_model_parallel_size} "
            f"and pipeline_model_parallel_size: {host.pipeline_model_parallel_size}"
        )


def _generation(config: RunConfig, name: Names) -> Iterator[str]:
    actor, pool = config.actor, config.resource_pool.world_size(SHARED)
    train, infer, tp = actor.num_gpus_for_train, actor.num_gpus_for_infer, actor.inference_tensor_model_parallel_size
    if train is not None and train + infer != pool:
        both = f"{name('num_gpus_for_train')} ({train}) + num_gpus_for_infer ({infer})"
        yield (
            f"{both} is {train + infer} but resource_pool.{SHARED} is {pool}; write the same number, or leave one out"
        )
    if infer % tp:
        yield (
            f"{name('num_gpus_for_infer')} ({infer}) must be a multiple of inference_tensor_model_parallel_size ({tp})"
        )
    if infer:
        yield from _tensor_split(name("inference_tensor_model_parallel_size"), tp, "the actor", actor.model_keys)


def _tensor_split(key: str, size: int, who: str, model_keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the architecture keys, as far as they are written, say against ``size`` tensor-parallel ranks."""
    heads, groups = model_keys.get("num_attention_heads"), model_keys.get("num_query_groups")
    if model_keys.get("group_query_attention") is False:
        groups = None  # Megatron then reads the heads only
    divided = {"attention heads": heads, "feed-forward columns": model_keys.get("ffn_hidden_size")}
    width = model_keys.get("kv_channels")
    sizes = TensorParallelSizes(
        {what: count for what, count in divided.items() if count is not None},
        {} if groups is None else {"query groups": groups},
        rows_of_query_key_value(heads, groups, width) if heads and groups and width else {},
    )
    for what, count in sizes.obstacles(size).items():
        kind = "must divide, or be a multiple of," if what in sizes.query_groups else "must divide"
        yield f"{key} ({size}) {kind} {who}'s {count} {what}"
