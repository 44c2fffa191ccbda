"""Whether a model can be split over a number of ranks. No torch."""

from collections.abc import Callable

from mindllm.errors import UserError
from mindllm.models.families import Architecture


def check_layout(
    architecture: Architecture,
    tensor_parallel_size: int | None,
    pipeline_parallel_size: int | None,
    expert_parallel_size: int | None = None,
) -> None:
    """Check that the model can be split this way. Raises UserError with the numbers and the nearest valid choices.

    As in megatron-core, more tensor-parallel ranks than query groups share a group if they are a multiple.
    """
    groups, moe = architecture.num_query_groups, architecture.moe
    tensor_dimensions = {
        "num_attention_heads": architecture.num_attention_heads,
        "intermediate_size": architecture.ffn_hidden_size,
    }
    if moe is not None:
        tensor_dimensions["size of an expert"] = moe.ffn_hidden_size
        tensor_dimensions["size of the shared experts"] = moe.shared_ffn_hidden_size or moe.ffn_hidden_size

    def undivided(size: int) -> dict[str, int]:
        shared = {} if size % groups == 0 else {"num_key_value_heads": groups}
        return _undivided({**tensor_dimensions, **shared}, size)

    layers, experts = {"num_layers": architecture.num_layers}, {"experts": moe.num_experts if moe else 1}
    _check("target-tensor-parallel-size", tensor_parallel_size, undivided, architecture.num_attention_heads)
    _check(
        "target-pipeline-parallel-size",
        pipeline_parallel_size,
        lambda size: _undivided(layers, size),
        architecture.num_layers,
    )
    _check(
        "target-expert-parallel-size",
        expert_parallel_size,
        lambda size: _undivided(experts, size),
        experts["experts"],
    )


def _undivided(dimensions: dict[str, int], size: int) -> dict[str, int]:
    return {key: value for key, value in dimensions.items() if size < 1 or value % size}


def _check(name: str, size: int | None, undivided: Callable[[int], dict[str, int]], largest: int) -> None:
    """Raise UserError when there are dimensions that ``size`` leaves undivided; sizes up to ``largest`` may do."""
    wrong = undivided(size) if size is not None else {}
    if size is None or not wrong:
        return
    valid = [number for number in range(1, largest + 1) if not undivided(number)]
    nearest = sorted(sorted(valid, key=lambda number: abs(number - size))[:3])
    numbers = ", ".join(f"{key} {value}" for key, value in wrong.items())
    raise UserError(f"{name} {size} does not divide {numbers}; the nearest that do are {nearest}")
