"""The tensors of a torch_dist checkpoint, written as Hugging Face names and shapes them."""

import torch

from mindllm.checkpoint.hf_to_mcore import read_weight
from mindllm.checkpoint.recipe import EMBEDDING, Recipe, listed, same_bits
from mindllm.checkpoint.safetensors_io import PlannedTensor, SafetensorsReader, SafetensorsWriter
from mindllm.checkpoint.torch_dist import TorchDistReader
from mindllm.errors import UserError
from mindllm.models.families import Weight
from mindllm.models.families.transforms import split

_OPTIMIZER_PREFIXES = ("optimizer.", "chained_")


def check_source(reader: TorchDistReader, recipe: Recipe) -> None:
    """Check that the checkpoint holds exactly the recipe's tensors in the right shapes.

    Tensors of an optimizer beside them are left alone. Raises UserError listing what does not fit.
    """
    expected = {weight.mcore for weight in recipe.weights}
    present = {key for key in reader.keys() if not key.startswith(_OPTIMIZER_PREFIXES)}
    missing = expected - present
    if missing:
        raise UserError(f"{reader.directory} lacks tensors that its hf/config.json implies: {listed(missing)}")
    left_over = present - expected
    if left_over:
        raise UserError(f"{reader.directory} has tensors that its hf/config.json does not imply: {listed(left_over)}")
    for weight in recipe.weights:
        layers = () if weight.layer is None else (recipe.architecture.num_layers,)
        shape, wanted = reader.shape(weight.mcore), (*layers, *weight.mcore_shape)
        fits = shape == wanted
        if weight.has_vocab_rows:
            fits = len(shape) == 2 and shape[0] >= wanted[0] and shape[1:] == wanted[1:]
        if not fits:
            raise UserError(f"{reader.directory}: {weight.mcore} has shape {shape}; hf/config.json implies {wanted}")


def planned_tensors(reader: TorchDistReader, recipe: Recipe) -> list[PlannedTensor]:
    """Return every tensor that :func:`write` will produce."""
    return [
        PlannedTensor(name, recipe.dtype or reader.dtype(weight.mcore), shape)
        for weight in recipe.weights
        for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)
    ]


def stored_dtype(reader: TorchDistReader, recipe: Recipe) -> torch.dtype:
    """Return the dtype that the result's config should state: that of its embedding."""
    return recipe.dtype or reader.dtype(EMBEDDING)


def _produce(reader: TorchDistReader, weight: Weight, recipe: Recipe) -> tuple[torch.Tensor, ...]:
    """Return the Hugging Face tensors of one weight, without padding rows."""
    tensor = recipe.cast(read_weight(reader, weight))
    if weight.has_vocab_rows:
        tensor = tensor[: recipe.architecture.vocab_size]
    return split(weight, tensor, recipe.architecture)


def write(reader: TorchDistReader, writer: SafetensorsWriter, recipe: Recipe) -> None:
    """Write every weight, one at a time."""
    for weight in recipe.weights:
        for name, tensor in zip(weight.hf, _produce(reader, weight, recipe), strict=True):
            writer.write(name, tensor)


def verify(reader: TorchDistReader, result: SafetensorsReader, recipe: Recipe) -> None:
    """Read everything back. Raises UserError for a tensor that differs from its source or holds NaN or infinity."""
    for weight in recipe.weights:
        for name, tensor in zip(weight.hf, _produce(reader, weight, recipe), strict=True):
            if not same_bits(result.read(name), tensor):
                raise UserError(f"verify: {name} was not written correctly")
            if not tensor.isfinite().all():
                raise UserError(f"verify: {weight.mcore} in {reader.directory} holds NaN or infinity")
