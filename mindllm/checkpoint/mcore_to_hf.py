"""The tensors of a torch_dist checkpoint, written as Hugging Face names and shapes them."""

from collections.abc import Sequence

import torch

from mindllm.checkpoint.hf_to_mcore import read_weight
from mindllm.checkpoint.safetensors_io import SafetensorsReader, SafetensorsWriter
from mindllm.checkpoint.tensor_checks import as_dtype, listed, same_bits
from mindllm.checkpoint.torch_dist import TorchDistReader
from mindllm.errors import UserError
from mindllm.models.families import Architecture, Weight
from mindllm.models.families.transforms import split

_OPTIMIZER_PREFIXES = ("optimizer.", "chained_")


def check_source(reader: TorchDistReader, weights: Sequence[Weight], architecture: Architecture) -> None:
    """Check that the checkpoint holds exactly the model tensors of ``weights`` in the right shapes.

    Tensors of an optimizer beside them are left alone. Raises UserError listing what does not fit.
    """
    expected = {weight.mcore for weight in weights}
    present = {key for key in reader.keys() if not key.startswith(_OPTIMIZER_PREFIXES)}
    missing = expected - present
    if missing:
        raise UserError(f"{reader.directory} lacks tensors that its config.json implies: {listed(missing)}")
    left_over = {key for key in present - expected if not key.endswith("_extra_state")}
    if left_over:
        raise UserError(f"{reader.directory} has tensors that its config.json does not imply: {listed(left_over)}")
    for weight in weights:
        layers = () if weight.layer is None else (architecture.num_layers,)
        shape, wanted = reader.shape(weight.mcore), (*layers, *weight.mcore_shape)
        fits = shape == wanted
        if weight.has_vocab_rows:
            fits = len(shape) == 2 and shape[0] >= wanted[0] and shape[1:] == wanted[1:]
        if not fits:
            raise UserError(f"{reader.directory}: {weight.mcore} has shape {shape}; hf/config.json implies {wanted}")


def planned_tensors(
    reader: TorchDistReader, weights: Sequence[Weight], dtype: torch.dtype | None
) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Return name, dtype and shape of every tensor that :func:`write` will produce."""
    return [
        (name, dtype or reader.dtype(weight.mcore), shape)
        for weight in weights
        for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)
    ]


def produce(
    reader: TorchDistReader, weight: Weight, architecture: Architecture, dtype: torch.dtype | None
) -> tuple[torch.Tensor, ...]:
    """Return the Hugging Face tensors of one weight, without padding rows."""
    tensor = as_dtype(read_weight(reader, weight), dtype)
    if weight.has_vocab_rows:
        tensor = tensor[: architecture.vocab_size]
    return split(weight, tensor, architecture)


def write(
    reader: TorchDistReader,
    writer: SafetensorsWriter,
    weights: Sequence[Weight],
    architecture: Architecture,
    dtype: torch.dtype | None,
) -> None:
    """Write every weight, one at a time."""
    for weight in weights:
        for name, tensor in zip(weight.hf, produce(reader, weight, architecture, dtype), strict=True):
            writer.write(name, tensor)


def verify(
    reader: TorchDistReader,
    result: SafetensorsReader,
    weights: Sequence[Weight],
    architecture: Architecture,
    dtype: torch.dtype | None,
) -> None:
    """Read everything back. Raises UserError for a tensor that differs from its source or holds NaN or infinity."""
    for weight in weights:
        for name, tensor in zip(weight.hf, produce(reader, weight, architecture, dtype), strict=True):
            if not same_bits(result.read(name), tensor):
                raise UserError(f"verify: {name} was not written correctly")
            if not tensor.isfinite().all():
                raise UserError(f"verify: {weight.mcore} in {reader.directory} holds NaN or infinity")
