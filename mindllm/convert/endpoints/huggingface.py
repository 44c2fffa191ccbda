"""A Hugging Face directory as one end of a conversion."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mindllm.convert.plan import Dtype, Recipe, Source, check_dtype, listed, share_of
from mindllm.errors import UserError
from mindllm.formats.arrays import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    Array,
    from_torch,
    name_of,
    same_bits,
    to_torch,
)
from mindllm.formats.safetensors_io import PlannedTensor, SafetensorsReader, SafetensorsWriter
from mindllm.models.families import EMBEDDING_KEY, OUTPUT_KEY, Architecture, Weight, family_of
from mindllm.models.families.transforms import merge, split

_UNUSED = re.compile(r".*rotary_emb\.inv_freq")  # a buffer that old versions of transformers saved
_LAYER = re.compile(r"model\.layers\.(\d+)\..*")
_FP8, _DEQUANTISED, _SCALE = FLOAT8_E4M3FN, BFLOAT16, "_scale_inv"


class HfSource:
    """Reads the weights of an architecture from safetensors files.

    The constructor checks that the files hold exactly the architecture's tensors, in the right shapes and one dtype per
    mcore key; a tied output layer that is there all the same must equal the embedding. Weights in fp8 with a scale per
    ``fp8_block`` are read as the bf16 they stand for. Raises UserError listing what does not fit.
    """

    def __init__(
        self,
        reader: SafetensorsReader,
        architecture: Architecture,
        weights: Sequence[Weight],
        fp8_block: tuple[int, int] | None = None,
    ) -> None:
        self.directory = reader.directory
        self._reader = reader
        self._architecture = architecture
        self._fp8_block = fp8_block
        self._check_names(weights)
        self._check_tensors(weights)

    def _check_names(self, weights: Sequence[Weight]) -> None:
        present = self._reader.infos.keys()
        expected = {name for weight in weights for name in weight.hf}
        ignored = {name for name in present if _UNUSED.fullmatch(name) or self._is_dropped(name)}
        ignored |= {name + _SCALE for name in expected if name in present and self._is_fp8(name)}
        if self._architecture.tie_embeddings:
            ignored |= self._tied_output()
        missing = expected - present
        if missing:
            raise UserError(f"{self.directory} lacks tensors that its config.json implies: {listed(missing)}")
        left_over = present - expected - ignored
        if left_over:
            raise UserError(f"{self.directory} has tensors that its config.json does not imply: {listed(left_over)}")

    def _is_dropped(self, name: str) -> bool:
        """Return whether a tensor is of a layer that predicts further tokens, which the family leaves out."""
        match = _LAYER.fullmatch(name)
        drops = family_of(self._architecture.family).later_layers is not None
        return drops and match is not None and int(match[1]) >= self._architecture.num_layers

    def _is_fp8(self, name: str) -> bool:
        return self._fp8_block is not None and self._reader.infos[name].dtype == _FP8

    def _dtype(self, name: str) -> Dtype:
        return _DEQUANTISED if self._is_fp8(name) else self._reader.infos[name].dtype

    def _tied_output(self) -> set[str]:
        """Return the name of a tied output layer that is in the files all the same, after comparing it."""
        infos = self._reader.infos
        embedding, output = (family_of(self._architecture.family).hf_name(key) for key in (EMBEDDING_KEY, OUTPUT_KEY))
        if output not in infos or embedding not in infos:
            return set()
        if not same_bits(self._reader.read(embedding), self._reader.read(output)):
            path = infos[output].path
            raise UserError(
                f"{path}: {output} differs from {embedding}, but config.json has tie_word_embeddings = true"
            )
        return {output}

    def _check_tensors(self, weights: Sequence[Weight]) -> None:
        """Refuse wrong shapes and dtypes, and dtypes that differ where tensors are joined under one key."""
        firsts: dict[str, str] = {}
        for weight in weights:
            for name, shape in zip(weight.hf, weight.hf_shapes, strict=True):
                info = self._reader.infos[name]
                if info.shape != shape:
                    raise UserError(f"{info.path}: {name} has shape {info.shape}; config.json implies {shape}")
                if self._is_fp8(name):
                    self._check_scale(name)
                check_dtype(info.path, name, self._dtype(name))
                first = firsts.setdefault(weight.mcore, name)
                if self._dtype(name) != self._dtype(first):
                    raise UserError(
                        f"{name} is {name_of(self._dtype(name))} but {first} {name_of(self._dtype(first))}; "
                        "megatron-core keeps them in one tensor"
                    )

    def _check_scale(self, name: str) -> None:
        info, scale = self._reader.infos[name], self._reader.infos.get(name + _SCALE)
        block = self._fp8_block or (1, 1)
        wanted = tuple(-(-size // width) for size, width in zip(info.shape, block, strict=False))
        if scale is None or len(info.shape) != 2 or scale.shape != wanted:
            found = "is missing" if scale is None else f"has shape {scale.shape}"
            raise UserError(f"{info.path}: {name} is fp8 in blocks of {block}; its {_SCALE} {found}, not {wanted}")

    def dtype(self, weight: Weight) -> Dtype:
        """Return the dtype of what :meth:`read` returns."""
        return self._dtype(weight.hf[0])

    def read(self, weight: Weight) -> Array:
        """Return the tensor of ``weight.mcore_shape`` made from the Hugging Face ones."""
        if weight.transform == "concat" and not any(map(self._is_fp8, weight.hf)):
            return self._read_side_by_side(weight)
        return merge(weight, [self._read(name) for name in weight.hf], self._architecture)

    def _read_side_by_side(self, weight: Weight) -> Array:
        """Read tensors to where they belong, which saves a copy of most of a model's bytes."""
        result = np.empty(weight.mcore_shape, self.dtype(weight))
        begin = 0
        for name, shape in zip(weight.hf, weight.hf_shapes, strict=True):
            self._reader.read_into(name, result[begin : begin + shape[0]])
            begin += shape[0]
        return result

    def _read(self, name: str) -> Array:
        """Return a Hugging Face tensor; one in fp8 as the bf16 that it stands for."""
        if not self._is_fp8(name) or self._fp8_block is None:
            return self._reader.read(name)
        return dequantised(self._reader.read(name), self._reader.read(name + _SCALE), self._fp8_block)

    def origin(self, weight: Weight) -> str:
        """Return the Hugging Face names."""
        return " or ".join(weight.hf)


def dequantised(quantised: Array, scale: Array, block: tuple[int, int]) -> Array:
    """Return ``quantised`` ``[rows, columns]`` fp8 times the ``scale`` of each block, in bf16."""
    import torch

    tensor = to_torch(quantised)
    result = torch.empty(tensor.shape, dtype=torch.bfloat16)
    rows, columns = block
    for number, factors in enumerate(to_torch(scale).float()):
        part = slice(number * rows, (number + 1) * rows)
        result[part] = tensor[part].float() * factors.repeat_interleave(columns)[: tensor.shape[1]]
    return from_torch(result)


class HfTarget:
    """Writes safetensors shards of at most ``max_shard_bytes``, unless one tensor is larger."""

    def __init__(self, directory: Path, recipe: Recipe, source: Source, max_shard_bytes: int) -> None:
        self._architecture = recipe.architecture
        self._weights = recipe.weights
        planned = [
            PlannedTensor(name, recipe.dtype_of(source, weight), shape)
            for weight in recipe.weights
            for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)
        ]
        self._writer = SafetensorsWriter(directory, planned, max_shard_bytes)

    def write(self, weight: Weight, tensor: Array) -> None:
        """Write the Hugging Face tensors that ``tensor`` is made of."""
        for name, part in zip(weight.hf, split(weight, tensor, self._architecture), strict=True):
            self._writer.write(name, part)

    def share(self, worker: int, num_workers: int) -> Sequence[Weight]:
        """Take a run of the weights; the files are there already, and every tensor has its place in them."""
        return share_of(self._weights, worker, num_workers)

    def end_share(self) -> set[str]:
        """Return the names that were written."""
        self._writer.close()
        return self._writer.written

    def merge(self, results: Sequence[set[str]]) -> None:
        """Note the names that were written."""
        for names in results:
            self._writer.written |= names

    def finish(self) -> None:
        """Write the index."""
        self._writer.finish()
