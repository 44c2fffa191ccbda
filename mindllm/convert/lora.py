"""Merging a Hugging Face PEFT adapter into the weights that it was trained for, as ``merge_and_unload`` does."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindllm.convert.adapter_config import read_adapter_config
from mindllm.convert.plan import Dtype, Source, listed
from mindllm.errors import UserError
from mindllm.formats.arrays import Array, from_torch, same_bits, to_torch
from mindllm.formats.safetensors_io import ADAPTER_NAME, SafetensorsReader
from mindllm.models.families import EMBEDDING_KEY, OUTPUT_KEY, Architecture, Weight, family_of
from mindllm.models.families.transforms import merge, split

_NAME = re.compile(
    r"base_model\.model\.(?P<module>.+?)(?:\.base_layer)?\."
    r"(?:lora_(?P<half>[AB])(?:\.default)?\.(?P<of>weight|bias)"
    r"|lora_embedding_(?P<embedding>[AB])(?:\.default)?"
    r"|(?P<magnitude>lora_magnitude_vector)(?:\.default)?(?:\.weight)?"
    r"|(?P<whole>weight|bias))"
)


@dataclass(frozen=True)
class _Change:
    """What becomes of a tensor ``W`` of the model, by names of tensors in the adapter's file.

    First ``whole`` takes the place of ``W``. Then ``scale * B @ A`` is added to it (transposed if ``is_embedding``), or
    ``scale * added_bias``. Finally the rows of a DoRA matrix, columns of an embedding, get the lengths ``magnitude``.
    """

    whole: str | None = None
    first: str | None = None
    second: str | None = None
    is_embedding: bool = False
    added_bias: str | None = None
    scale: float = 1.0
    magnitude: str | None = None


class Adapter:
    """A LoRA adapter: low-rank products to add to matrices of the model, and tensors that take the place of others.

    The constructor checks that the adapter is one that can be merged, and that every tensor of its file belongs to a
    tensor of the model and fits. Raises UserError naming the file and what does not fit.
    """

    def __init__(self, directory: str | Path, weights: Sequence[Weight], architecture: Architecture) -> None:
        self._config_path = Path(directory) / "adapter_config.json"
        self._config = read_adapter_config(self._config_path)
        self._reader = SafetensorsReader(directory, ADAPTER_NAME)
        self._path = self._reader.directory / ADAPTER_NAME
        shapes = {name: shape for weight in weights for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)}
        parts = self._parts()
        if not parts:
            raise UserError(f"{self._path} holds no tensor")
        if architecture.tie_embeddings:
            self._check_tied(parts, architecture)
        unknown = parts.keys() - shapes.keys()
        if unknown:
            raise UserError(f"{directory} adapts what the model does not have: {listed(unknown)}")
        normalized = {name for weight in weights if weight.transform == "unit_rows" for name in weight.hf}
        if normalized & parts.keys():
            raise UserError(f"{self._path}: {listed(normalized)} has rows of length one, which cannot be adapted")
        self._changes = {name: self._change(name, found, shapes[name]) for name, found in parts.items()}

    def _parts(self) -> dict[str, dict[str, str]]:
        """Return, by name of the model's tensor, what the file holds for it: role -> name in the file."""
        parts: dict[str, dict[str, str]] = {}
        for name in self._reader.infos:
            match = _NAME.fullmatch(name)
            if match is None:
                raise UserError(f"{self._path}: {name} is no tensor of a LoRA adapter that can be merged")
            target = f"{match['module']}.{match['whole'] or match['of'] or 'weight'}"
            role = match["half"] or match["embedding"] or ("magnitude" if match["magnitude"] else "whole")
            role = "added_bias" if match["of"] == "bias" else role
            parts.setdefault(target, {})[f"embedding_{role}" if match["embedding"] else role] = name
        return parts

    def _check_tied(self, parts: dict[str, dict[str, str]], architecture: Architecture) -> None:
        """Refuse to change a tied matrix on one side only; take out the copy of an output layer that is the same."""
        family = family_of(architecture.family)
        embedding, output = (family.hf_name(key) for key in (EMBEDDING_KEY, OUTPUT_KEY))
        saved = self._config.get("modules_to_save") or ()
        for name in (embedding, output):
            module = name.removesuffix(".weight")
            if parts.get(name, {}).keys() - {"whole"} or any(f".{module}".endswith(f".{each}") for each in saved):
                raise UserError(
                    f"{self._path}: {module} is adapted, but embedding and output layer are one matrix "
                    "(tie_word_embeddings = true); merged, the change of one would be one of the other too. Merge it "
                    "with peft into a model whose embeddings are untied, and convert that"
                )
        copies = [self._reader.read(parts[name]["whole"]) for name in (embedding, output) if name in parts]
        if output in parts:
            if len(copies) < 2 or not same_bits(*copies):
                raise UserError(f"{self._path}: {output} differs from the embedding, to which it is tied")
            del parts[output]

    def _change(self, name: str, parts: Mapping[str, str], shape: tuple[int, ...]) -> _Change:
        """Return what the ``parts`` do to the tensor ``name``, after checking that they fit."""
        halves = sorted(role for role in parts if role.removeprefix("embedding_") in ("A", "B"))
        whole, added_bias, magnitude = (parts.get(role) for role in ("whole", "added_bias", "magnitude"))
        if whole is not None:
            self._check_shape(whole, shape, name)
        if added_bias is not None:
            self._check_shape(added_bias, shape, name)
            return _Change(whole=whole, added_bias=added_bias, scale=self._scale(name))
        if not halves:
            if magnitude is not None:
                raise UserError(f"{self._path}: {name} has {magnitude} only")
            return _Change(whole=whole)
        is_embedding = "embedding_" in halves[0]
        if len(halves) != 2 or [half.removeprefix("embedding_") for half in halves] != ["A", "B"]:
            raise UserError(f"{self._path}: {name} has lora_{' and lora_'.join(halves)} only")
        first, second = (parts[half] for half in halves)
        self._check_pair(name, first, second, shape[::-1] if is_embedding else shape)
        if (magnitude is not None) != bool(self._config.get("use_dora")):
            found = "has a magnitude" if magnitude else "has no magnitude"
            raise UserError(f"{self._path}: {name} {found}, but use_dora is {self._config.get('use_dora')!r}")
        if magnitude is not None and math.prod(self._reader.infos[magnitude].shape) != shape[is_embedding]:
            self._check_shape(magnitude, (shape[is_embedding],), name)
        return _Change(whole, first, second, is_embedding, None, self._scale(name), magnitude)

    def _check_shape(self, tensor: str, wanted: tuple[int, ...], name: str) -> None:
        shape = self._reader.infos[tensor].shape
        if shape != wanted:
            raise UserError(
                f"{self._path}: {tensor} has shape {shape}, {name} of the model needs {wanted}; an adapter trained "
                "after the vocabulary was resized needs a base that was resized too"
            )

    def _check_pair(self, name: str, first: str, second: str, shape: tuple[int, ...]) -> None:
        found = self._reader.infos[first].shape, self._reader.infos[second].shape
        rank = self._value("r", "rank_pattern", name)
        if len(shape) != 2 or found != ((rank, shape[1]), (shape[0], rank)):
            raise UserError(f"{self._path}: A {found[0]} and B {found[1]} of rank {rank} do not fit {name} {shape}")

    def _scale(self, name: str) -> float:
        rank = self._value("r", "rank_pattern", name)
        return self._value("lora_alpha", "alpha_pattern", name) / (
            math.sqrt(rank) if self._config.get("use_rslora") else rank
        )

    def _value(self, field: str, pattern_field: str, name: str) -> int | float:
        """Return the rank or alpha of one matrix; a pattern matches the end of its module's name, as in PEFT."""
        module = name.rpartition(".")[0]
        for pattern, value in (self._config.get(pattern_field) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return self._number(pattern_field, value)
        return self._number(field, self._config.get(field))

    def _number(self, field: str, value: Any) -> int | float:
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise UserError(f"{self._config_path}: {field} is {value!r}; a positive number is needed")
        return value

    def adapts(self, weight: Weight) -> bool:
        """Return whether any part of ``weight`` is changed."""
        return any(name in self._changes for name in weight.hf)

    def apply(self, name: str, tensor: Array) -> Array:
        """Return the Hugging Face tensor ``name`` as the adapter changes it, computed in fp32, in its own dtype."""
        import torch

        change = self._changes.get(name)
        if change is None:
            return tensor
        base = to_torch(tensor)
        result = base.float() if change.whole is None else self._read(change.whole)
        if change.first is not None and change.second is not None:
            product = self._read(change.second) @ self._read(change.first)
            result = (product.T if change.is_embedding else product).mul(change.scale).add_(result)
        if change.added_bias is not None:
            result = result + self._read(change.added_bias) * change.scale
        if change.magnitude is not None:
            axis = 0 if change.is_embedding else 1
            factor = self._read(change.magnitude).flatten() / torch.linalg.vector_norm(result, dim=axis)
            result *= factor.unsqueeze(axis)
        return from_torch(result.to(base.dtype).contiguous())

    def _read(self, name: str) -> Any:
        return to_torch(self._reader.read(name)).float()

    def close(self) -> None:
        """Close the adapter's file."""
        self._reader.close()


class AdaptedSource:
    """A source with an adapter merged into it."""

    def __init__(self, source: Source, adapter: Adapter, architecture: Architecture) -> None:
        self.directory = source.directory
        self._source = source
        self._adapter = adapter
        self._architecture = architecture

    def dtype(self, weight: Weight) -> Dtype:
        """Return the dtype of what :meth:`read` returns."""
        return self._source.dtype(weight)

    def read(self, weight: Weight) -> Array:
        """Return the source's tensor, changed where the adapter changes it."""
        tensor = self._source.read(weight)
        if not self._adapter.adapts(weight):
            return tensor
        parts = split(weight, tensor, self._architecture)
        pairs = zip(weight.hf, parts, strict=True)
        return merge(weight, [self._adapter.apply(name, part) for name, part in pairs], self._architecture)

    def origin(self, weight: Weight) -> str:
        """Return how the source calls the weight."""
        return self._source.origin(weight)
