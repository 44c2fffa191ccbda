"""Whether a model can be split over a number of ranks. No torch."""

from typing import NamedTuple

from mindllm.divisibility import TensorParallelSizes, rows_of_query_key_value
from mindllm.errors import UserError
from mindllm.models.families import Architecture


class SizeNames(NamedTuple):
    """How messages call the parallel sizes."""

    tensor: str = "target-tensor-parallel-size"
    pipeline: str = "target-pipeline-parallel-size"
    expert: str = "target-expert-parallel-size"


FLAGS = SizeNames()


def check_layout(
    architecture: Architecture,
    tensor_parallel_size: int | None,
    pipeline_parallel_size: int | None,
    expert_parallel_size: int | None = None,
    names: SizeNames = FLAGS,
) -> None:
    """Check that the model can be split this way. Raises UserError with the numbers and the nearest valid choices."""
    num_experts = architecture.moe.num_experts if architecture.moe else 1
    _check(names.tensor, tensor_parallel_size, tensor_parallel_sizes(architecture))
    _check(names.pipeline, pipeline_parallel_size, TensorParallelSizes({"num_layers": architecture.num_layers}))
    _check(names.expert, expert_parallel_size, TensorParallelSizes({"experts": num_experts}))


def tensor_parallel_sizes(architecture: Architecture) -> TensorParallelSizes:
    """Return what tensor parallelism splits of ``architecture``, under the names of ``config.json``."""
    heads, groups, moe = architecture.num_attention_heads, architecture.num_query_groups, architecture.moe
    divided = {"num_attention_heads": heads, "intermediate_size": architecture.ffn_hidden_size}
    if moe is not None:
        divided["size of an expert"] = moe.ffn_hidden_size
        divided["size of the shared experts"] = moe.shared_ffn_hidden_size or moe.ffn_hidden_size
    rows = {} if architecture.mla else rows_of_query_key_value(heads, groups, architecture.head_dim)
    return TensorParallelSizes(divided, {"num_key_value_heads": groups}, rows)


def _check(name: str, size: int | None, sizes: TensorParallelSizes) -> None:
    if size is None:
        return
    wrong = sizes.obstacles(size) if size > 0 else sizes.divided
    if not wrong:
        return
    nearest = sorted(sorted(sizes.allowed(), key=lambda number: abs(number - size))[:3])
    numbers = ", ".join(
        f"{key} {value}" + (" (nor is it a multiple)" if key in sizes.query_groups else "")
        for key, value in wrong.items()
    )
    raise UserError(f"{name} {size} does not divide {numbers}; the nearest that do are {nearest}")
