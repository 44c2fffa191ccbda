"""The tensors of a Hugging Face checkpoint, written as megatron-core names and shapes them."""

import re
from collections.abc import Sequence

import torch

from mindllm.checkpoint.safetensors_io import SafetensorsReader
from mindllm.checkpoint.tensor_checks import as_dtype, listed, same_bits
from mindllm.checkpoint.torch_dist import TorchDistReader, TorchDistWriter
from mindllm.errors import UserError
from mindllm.models.families import Architecture, Weight
from mindllm.models.families.transforms import merge, pad_rows
from mindllm.models.families.weights import EMBEDDING, OUTPUT

_UNUSED = re.compile(r".*rotary_emb\.inv_freq")  # a buffer that old versions of transformers saved
_WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_source(reader: SafetensorsReader, weights: Sequence[Weight], architecture: Architecture) -> None:
    """Check that the source holds exactly the tensors of ``weights``, in the right shapes and one dtype per key.

    A tied output layer that is in the files all the same must equal the embedding. Raises UserError listing what does
    not fit.
    """
    expected = {name: shape for weight in weights for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)}
    ignored = {name for name in reader.infos if _UNUSED.fullmatch(name)}
    if architecture.tie_embeddings:
        _check_tied_output(reader, ignored)
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
    _check_dtypes(reader, weights)


def _check_tied_output(reader: SafetensorsReader, ignored: set[str]) -> None:
    """Add the copy of a tied output layer to ``ignored`` if it is there and equals the embedding."""
    embedding, output = EMBEDDING.hf[0], OUTPUT.hf[0]
    if output not in reader.infos or embedding not in reader.infos:
        return
    if not same_bits(reader.read(embedding), reader.read(output)):
        path = reader.infos[output].path
        raise UserError(f"{path}: {output} differs from {embedding}, but config.json has tie_word_embeddings = true")
    ignored.add(output)


def _check_dtypes(reader: SafetensorsReader, weights: Sequence[Weight]) -> None:
    """Refuse tensors that would be joined under one key although their dtypes differ."""
    dtypes: dict[str, tuple[torch.dtype, str]] = {}
    for weight in weights:
        for name in weight.hf:
            dtype = reader.infos[name].dtype
            first, first_name = dtypes.setdefault(weight.mcore, (dtype, name))
            if dtype != first:
                raise UserError(f"{name} is {dtype} but {first_name} {first}; megatron-core keeps them in one tensor")


def stored_bytes(reader: SafetensorsReader, weights: Sequence[Weight], rows: int, dtype: torch.dtype | None) -> int:
    """Return how many bytes of tensor data :func:`write` will produce; ``rows`` is the padded vocabulary size."""
    total = 0
    for weight in weights:
        shape = (rows, *weight.mcore_shape[1:]) if weight.has_vocab_rows else weight.mcore_shape
        total += torch.Size(shape).numel() * (dtype or reader.infos[weight.hf[0]].dtype).itemsize
    return total


def produce(
    reader: SafetensorsReader, weight: Weight, architecture: Architecture, rows: int, dtype: torch.dtype | None
) -> torch.Tensor:
    """Return one mcore tensor (or one layer of it) made from the source, its vocabulary padded to ``rows``."""
    tensor = merge(weight, [as_dtype(reader.read(name), dtype) for name in weight.hf], architecture)
    return pad_rows(tensor, rows) if weight.has_vocab_rows else tensor


def write(
    reader: SafetensorsReader,
    writer: TorchDistWriter,
    weights: Sequence[Weight],
    architecture: Architecture,
    rows: int,
    dtype: torch.dtype | None,
) -> None:
    """Write every weight, one at a time."""
    for weight in weights:
        tensor = produce(reader, weight, architecture, rows, dtype)
        if weight.layer is None:
            writer.write(weight.mcore, tensor)
        else:
            writer.write_layer(weight.mcore, tensor, weight.layer, architecture.num_layers)


def verify(
    reader: SafetensorsReader,
    result: TorchDistReader,
    weights: Sequence[Weight],
    architecture: Architecture,
    rows: int,
    dtype: torch.dtype | None,
) -> None:
    """Read everything back. Raises UserError for a tensor that differs from its source or holds NaN or infinity."""
    for weight in weights:
        stored = read_weight(result, weight)
        if not same_bits(stored, produce(reader, weight, architecture, rows, dtype)):
            raise UserError(f"verify: {weight.mcore} (layer {weight.layer}) was not written correctly")
        if not stored.isfinite().all():
            raise UserError(f"verify: {' or '.join(weight.hf)} in {reader.directory} holds NaN or infinity")


def read_weight(reader: TorchDistReader, weight: Weight) -> torch.Tensor:
    """Return one weight of a torch_dist checkpoint, without the layer axis."""
    return reader.read(weight.mcore) if weight.layer is None else reader.read_layer(weight.mcore, weight.layer)
