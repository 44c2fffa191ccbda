"""The tensors of a Hugging Face checkpoint, written as megatron-core names and shapes them."""

import re

import torch

from mindllm.checkpoint.recipe import EMBEDDING, OUTPUT, Recipe, listed, same_bits
from mindllm.checkpoint.safetensors_io import SafetensorsReader
from mindllm.checkpoint.torch_dist import TorchDistReader, TorchDistWriter
from mindllm.errors import UserError
from mindllm.models.families import Weight, family_of
from mindllm.models.families.transforms import merge, pad_rows

_UNUSED = re.compile(r".*rotary_emb\.inv_freq")  # a buffer that old versions of transformers saved
_WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_source(reader: SafetensorsReader, recipe: Recipe) -> None:
    """Check that the source holds exactly the recipe's tensors, in the right shapes and one dtype per mcore key.

    A tied output layer that is in the files all the same must equal the embedding. Raises UserError listing what does
    not fit.
    """
    expected = {
        name: shape for weight in recipe.weights for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)
    }
    ignored = {name for name in reader.infos if _UNUSED.fullmatch(name)}
    if recipe.architecture.tie_embeddings:
        ignored |= _tied_output(reader, recipe.architecture.family)
    missing = expected.keys() - reader.infos.keys()
    if missing:
        raise UserError(f"{reader.directory} lacks tensors that its config.json implies: {listed(missing)}")
    left_over = reader.infos.keys() - expected.keys() - ignored
    if left_over:
        raise UserError(f"{reader.directory} has tensors that its config.json does not imply: {listed(left_over)}")
    for name, shape in expected.items():
        info = reader.infos[name]
        if info.shape != shape:
            raise UserError(f"{info.path}: {name} has shape {info.shape}; config.json implies {shape}")
        if info.dtype not in _WEIGHT_DTYPES:
            raise UserError(f"{info.path}: {name} is {info.dtype}; weights of fp32, bf16 and fp16 can be converted")
    _check_dtypes(reader, recipe)


def _tied_output(reader: SafetensorsReader, family: str) -> set[str]:
    """Return the name of a tied output layer that is in the files all the same, after comparing it."""
    embedding, output = (family_of(family).hf_name(key) for key in (EMBEDDING, OUTPUT))
    if output not in reader.infos or embedding not in reader.infos:
        return set()
    if not same_bits(reader.read(embedding), reader.read(output)):
        path = reader.infos[output].path
        raise UserError(f"{path}: {output} differs from {embedding}, but config.json has tie_word_embeddings = true")
    return {output}


def _check_dtypes(reader: SafetensorsReader, recipe: Recipe) -> None:
    """Refuse tensors that would be joined under one key although their dtypes differ."""
    firsts: dict[str, str] = {}
    for weight in recipe.weights:
        for name in weight.hf:
            first = firsts.setdefault(weight.mcore, name)
            dtype, first_dtype = reader.infos[name].dtype, reader.infos[first].dtype
            if dtype != first_dtype:
                raise UserError(f"{name} is {dtype} but {first} {first_dtype}; megatron-core keeps them in one tensor")


def stored_bytes(reader: SafetensorsReader, recipe: Recipe) -> list[int]:
    """Return how many bytes each tensor (or layer of one) that :func:`write` produces takes."""
    sizes = []
    for weight in recipe.weights:
        shape = (recipe.num_vocab_rows, *weight.mcore_shape[1:]) if weight.has_vocab_rows else weight.mcore_shape
        dtype = recipe.dtype or reader.infos[weight.hf[0]].dtype
        sizes.append(torch.Size(shape).numel() * dtype.itemsize)
    return sizes


def stored_dtype(reader: SafetensorsReader, recipe: Recipe) -> torch.dtype:
    """Return the dtype that the result's config should state: that of its embedding."""
    return recipe.dtype or reader.infos[family_of(recipe.architecture.family).hf_name(EMBEDDING)].dtype


def _produce(reader: SafetensorsReader, weight: Weight, recipe: Recipe) -> torch.Tensor:
    """Return one mcore tensor (or one layer of it) made from the source, its vocabulary padded."""
    tensor = merge(weight, [recipe.cast(reader.read(name)) for name in weight.hf], recipe.architecture)
    return pad_rows(tensor, recipe.num_vocab_rows) if weight.has_vocab_rows else tensor


def write(reader: SafetensorsReader, writer: TorchDistWriter, recipe: Recipe) -> None:
    """Write every weight, one at a time."""
    for weight in recipe.weights:
        tensor = _produce(reader, weight, recipe)
        if weight.layer is None:
            writer.write(weight.mcore, tensor)
        else:
            writer.write_layer(weight.mcore, tensor, weight.layer, recipe.architecture.num_layers)
    _write_extra_states(writer, recipe)


def _write_extra_states(writer: TorchDistWriter, recipe: Recipe) -> None:
    """Write the empty fp8 states that megatron-core's linear layers have, and that its loader misses otherwise."""
    modules = {weight.mcore.rpartition(".")[0] for weight in recipe.weights if ".linear_" in weight.mcore}
    num_layers = recipe.architecture.num_layers
    for module in sorted(modules):
        for layer in range(num_layers):
            writer.write_empty_object(f"{module}._extra_state", layer, num_layers)


def verify(reader: SafetensorsReader, result: TorchDistReader, recipe: Recipe) -> None:
    """Read everything back. Raises UserError for a tensor that differs from its source or holds NaN or infinity."""
    for weight in recipe.weights:
        stored = read_weight(result, weight)
        if not same_bits(stored, _produce(reader, weight, recipe)):
            raise UserError(f"verify: {weight.mcore} (layer {weight.layer}) was not written correctly")
        if not stored.isfinite().all():
            raise UserError(f"verify: {' or '.join(weight.hf)} in {reader.directory} holds NaN or infinity")


def read_weight(reader: TorchDistReader, weight: Weight) -> torch.Tensor:
    """Return one weight of a torch_dist checkpoint, without the layer axis."""
    return reader.read(weight.mcore) if weight.layer is None else reader.read_layer(weight.mcore, weight.layer)
