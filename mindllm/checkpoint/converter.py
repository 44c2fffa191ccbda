"""Conversion between Hugging Face and torch_dist directories: checks, plan, streaming, commit.

Imports torch inside the functions, so that the command line answers quickly.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from mindllm import __version__
from mindllm.checkpoint.info import (
    TRACKER_NAME,
    copy_hf_files,
    iteration_dir,
    latest_iteration_dir,
    read_checkpoint_info,
    write_checkpoint_info,
)
from mindllm.checkpoint.staging import committed_directory
from mindllm.errors import UserError
from mindllm.models.families import Architecture, family_of, load_architecture

_ITERATION = 1  # of a converted model
_SLACK_BYTES = 64 * 2**20  # headers, tokenizer files
DEFAULT_MAX_SHARD_BYTES = 5 * 10**9


def _silent(line: str) -> None:
    """Report nothing."""


def convert_hf_to_mcore(
    load_dir: str | Path,
    save_dir: str | Path,
    *,
    family: str | None = None,
    params_dtype: str | None = None,
    make_vocab_size_divisible_by: int = 1,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    verify: bool = False,
    report: Callable[[str], None] = _silent,
) -> Path:
    """Convert a Hugging Face model directory to a torch_dist checkpoint; return its iteration directory.

    ``family`` is checked against ``config.json`` when given. Weights keep their dtype unless ``params_dtype`` names
    another. The vocabulary is padded with zero rows to a multiple of ``make_vocab_size_divisible_by``. The parallel
    sizes are those the model is meant to run at: they are checked and recorded, the files do not depend on them.
    ``report`` receives the plan and the result, a line at a time. Raises UserError; then nothing is at ``save_dir``.
    """
    from mindllm.checkpoint import hf_to_mcore
    from mindllm.checkpoint.recipe import make_recipe, name_of
    from mindllm.checkpoint.safetensors_io import SafetensorsReader
    from mindllm.checkpoint.torch_dist import TorchDistReader, TorchDistWriter

    architecture = load_architecture(load_dir)
    _check_family(architecture, family, load_dir)
    check_layout(architecture, tensor_parallel_size, pipeline_parallel_size)
    num_vocab_rows = -(-architecture.vocab_size // make_vocab_size_divisible_by) * make_vocab_size_divisible_by
    recipe = make_recipe(architecture, num_vocab_rows, params_dtype)
    with SafetensorsReader(load_dir) as reader:
        hf_to_mcore.check_source(reader, recipe)
        sizes = hf_to_mcore.stored_bytes(reader, recipe)
        dtype = name_of(hf_to_mcore.stored_dtype(reader, recipe))
        report(_plan(architecture, dtype, load_dir, save_dir, sizes))
        with committed_directory(Path(save_dir), sum(sizes) + _SLACK_BYTES) as staged:
            directory = iteration_dir(staged, _ITERATION)
            directory.mkdir()
            with TorchDistWriter(directory) as writer:
                hf_to_mcore.write(reader, writer, recipe)
                writer.finish(_ITERATION)
            if verify:
                with TorchDistReader(directory) as result:
                    hf_to_mcore.verify(reader, result, recipe)
            copy_hf_files(load_dir, directory / "hf", dtype)
            provenance = {
                "converted_from": str(Path(load_dir).resolve()),
                "mindllm": __version__,
                "target_tensor_parallel_size": tensor_parallel_size,
                "target_pipeline_parallel_size": pipeline_parallel_size,
            }
            write_checkpoint_info(
                directory, architecture, padded_vocab_size=num_vocab_rows, dtype=dtype, provenance=provenance
            )
            (staged / TRACKER_NAME).write_text(f"{_ITERATION}\n", encoding="utf-8")
    report(f"wrote {save_dir}" + (", read back and equal" if verify else ""))
    return iteration_dir(save_dir, _ITERATION)


def convert_mcore_to_hf(
    load_dir: str | Path,
    save_dir: str | Path,
    iteration: int | None = None,
    *,
    family: str | None = None,
    params_dtype: str | None = None,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    verify: bool = False,
    report: Callable[[str], None] = _silent,
) -> Path:
    """Convert one iteration (default: the latest) of a checkpoint to a Hugging Face model directory; return it.

    Weights keep their dtype unless ``params_dtype`` names another; ``config.json`` states the result. A shard holds at
    most ``max_shard_bytes``, unless one tensor is larger. Raises UserError; then nothing is at ``save_dir``.
    """
    from mindllm.checkpoint import mcore_to_hf
    from mindllm.checkpoint.recipe import make_recipe, name_of
    from mindllm.checkpoint.safetensors_io import SafetensorsReader, SafetensorsWriter
    from mindllm.checkpoint.torch_dist import TorchDistReader

    source = latest_iteration_dir(load_dir) if iteration is None else iteration_dir(load_dir, iteration)
    if not source.is_dir():
        raise UserError(f"{load_dir} has no iteration {iteration} ({source.name})")
    info = read_checkpoint_info(source)
    _check_family(info.architecture, family, source)
    recipe = make_recipe(info.architecture, info.padded_vocab_size, params_dtype)
    with TorchDistReader(source) as reader:
        mcore_to_hf.check_source(reader, recipe)
        planned = mcore_to_hf.planned_tensors(reader, recipe)
        sizes = [tensor.num_bytes for tensor in planned]
        dtype = name_of(mcore_to_hf.stored_dtype(reader, recipe))
        report(_plan(info.architecture, dtype, source, save_dir, sizes))
        with committed_directory(Path(save_dir), sum(sizes) + _SLACK_BYTES) as staged:
            writer = SafetensorsWriter(staged, planned, max_shard_bytes)
            mcore_to_hf.write(reader, writer, recipe)
            writer.finish()
            if verify:
                with SafetensorsReader(staged) as result:
                    mcore_to_hf.verify(reader, result, recipe)
            copy_hf_files(info.hf_dir, staged, dtype)
    report(f"wrote {save_dir}" + (", read back and equal" if verify else ""))
    return Path(save_dir)


def check_layout(
    architecture: Architecture, tensor_parallel_size: int | None, pipeline_parallel_size: int | None
) -> None:
    """Check that the model can be split this way. Raises UserError with the numbers and the nearest valid choices."""
    tensor_dimensions = {
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_query_groups,
        "intermediate_size": architecture.ffn_hidden_size,
    }
    _check_divides("target-tensor-parallel-size", tensor_parallel_size, tensor_dimensions)
    _check_divides("target-pipeline-parallel-size", pipeline_parallel_size, {"num_layers": architecture.num_layers})


def _check_divides(name: str, size: int | None, dimensions: dict[str, int]) -> None:
    if size is None:
        return
    wrong = {key: value for key, value in dimensions.items() if size < 1 or value % size}
    if not wrong:
        return
    valid = [n for n in range(1, min(dimensions.values()) + 1) if not any(value % n for value in dimensions.values())]
    nearest = sorted(sorted(valid, key=lambda n: abs(n - size))[:3])
    numbers = ", ".join(f"{key} {value}" for key, value in wrong.items())
    raise UserError(f"{name} {size} does not divide {numbers}; the nearest that do are {nearest}")


def _check_family(architecture: Architecture, family: str | None, directory: str | Path) -> None:
    if family is not None and family_of(family).name != architecture.family:
        raise UserError(f"{directory} holds a model of family '{architecture.family}', not '{family}'")


def _plan(architecture: Architecture, dtype: str, source: str | Path, target: str | Path, sizes: Sequence[int]) -> str:
    """Say what is about to happen; memory is for the parts of the largest tensor, the whole, and a copy."""
    return (
        f"plan: {architecture.family}, {architecture.num_layers} layers, {dtype}, {sum(sizes) / 2**20:,.1f} MiB "
        f"from {source} to {target}; about {3 * max(sizes) / 2**20 + 400:,.0f} MiB of memory"
    )
