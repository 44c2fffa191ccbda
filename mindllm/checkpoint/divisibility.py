"""Whether a model can be split over a number of ranks. No torch."""

from collections.abc import Mapping
from types import MappingProxyType

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
    moe = architecture.moe
    tensor_dimensions = {
        "num_attention_heads": architecture.num_attention_heads,
        "intermediate_size": architecture.ffn_hidden_size,
    }
    if moe is not None:
        tensor_dimensions["size of an expert"] = moe.ffn_hidden_size
        tensor_dimensions["size of the shared experts"] = moe.shared_ffn_hidden_size or moe.ffn_hidden_size
    shared = {"num_key_value_heads": architecture.num_query_groups}
    _check_divides("target-tensor-parallel-size", tensor_parallel_size, tensor_dimensions, shared)
    _check_divides("target-pipeline-parallel-size", pipeline_parallel_size, {"num_layers": architecture.num_layers})
    _check_divides("target-expert-parallel-size", expert_parallel_size, {"experts": moe.num_experts if moe else 1})


def _check_divides(
    name: str, size: int | None, dimensions: dict[str, int], shared: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Raise UserError unless ``size`` divides the ``dimensions``, and the ``shared`` ones or is a multiple of them."""

    def undivided(number: int) -> dict[str, int]:
        wrong = {key: value for key, value in dimensions.items() if value % number}
        return wrong | {key: value for key, value in shared.items() if value % number and number % value}

    if size is None:
        return
    wrong = undivided(size) if size > 0 else dimensions
    if not wrong:
        return
    valid = [number for number in range(1, min(dimensions.values()) + 1) if not undivided(number)]
    nearest = sorted(sorted(valid, key=lambda number: abs(number - size))[:3])
    numbers = ", ".join(f"{key} {value}" for key, value in wrong.items())
    raise UserError(f"{name} {size} does not divide {numbers}; the nearest that do are {nearest}")
