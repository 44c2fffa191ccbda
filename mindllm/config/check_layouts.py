"""Checks of layouts and processes: what is split must divide, who shares must match."""

from collections.abc import Iterator

from mindllm.config.check_names import HOMES, WHO, Names
from mindllm.config.pool import SHARED, PoolRole
from mindllm.config.roles import RoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.settle_pool import same_layout


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
    heads, layers = keys.model_keys.get("num_attention_heads"), keys.model_keys.get("num_layers")
    if chunk is not None and pp == 1:
        yield (
            f"{name('num_layers_per_virtual_pipeline_stage', role)} needs pipeline_model_parallel_size > 1 "
            f"(it is 1 for {WHO[role]})"
        )
    if heads is not None and heads % tp:
        yield f"{name('tensor_model_parallel_size', role)} ({tp}) must divide {WHO[role]}'s {heads} attention heads"
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
    heads = actor.model_keys.get("num_attention_heads")
    if infer and heads is not None and heads % tp:
        yield f"{name('inference_tensor_model_parallel_size')} ({tp}) must divide the actor's {heads} attention heads"
