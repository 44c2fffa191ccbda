"""Merging a Hugging Face PEFT adapter (LoRA) into the weights that it was trained for."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindllm.checkpoint.recipe import Dtype, Source, listed
from mindllm.checkpoint.safetensors_io import SafetensorsReader
from mindllm.errors import UserError
from mindllm.models.families import Architecture, Weight
from mindllm.models.families.arrays import Array, from_torch, to_torch
from mindllm.models.families.transforms import merge, split

_FILE_NAME = "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.(?:default\.)?weight")
# Fields that would change the sum, with the values under which they do not.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "fan_in_fan_out": (None, False),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None,),
    "use_dora": (None, False),
    "use_qalora": (None, False),
}


class Adapter:
    """A LoRA adapter: for some matrices ``W`` of the model, ``scale * B @ A`` to add.

    The constructor checks that every tensor is half of such a pair, for a matrix of the model and of fitting shape.
    Raises UserError naming the file and what does not fit.
    """

    def __init__(self, directory: str | Path, weights: Sequence[Weight]) -> None:
        self._config_path = Path(directory) / "adapter_config.json"
        self._config = self._read_config()
        self._reader = SafetensorsReader(directory, _FILE_NAME)
        shapes = {name: shape for weight in weights for name, shape in zip(weight.hf, weight.hf_shapes, strict=True)}
        halves: dict[str, dict[str, str]] = {}
        for name in self._reader.infos:
            match = _NAME.fullmatch(name)
            if match is None:
                raise UserError(f"{self._reader.directory / _FILE_NAME}: {name} is not a LoRA matrix of a linear layer")
            halves.setdefault(f"{match[1]}.weight", {})[match[2]] = name
        unknown = halves.keys() - shapes.keys()
        if unknown:
            raise UserError(f"{directory} adapts what the model does not have: {listed(unknown)}")
        self._pairs = {name: self._pair(name, half, shapes[name]) for name, half in halves.items()}

    def _read_config(self) -> dict[str, Any]:
        path = self._config_path
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path.parent} has no {path.name}; a PEFT adapter directory is needed") from None
        except ValueError as error:
            raise UserError(f"{path} is not valid JSON: {error}") from None
        if config.get("peft_type") != "LORA":
            raise UserError(f"{path}: peft_type is {config.get('peft_type')!r}; only 'LORA' can be merged")
        for field, allowed in _PLAIN.items():
            if config.get(field) not in allowed:
                raise UserError(f"{path}: {field} is {config[field]!r}; only plain LoRA can be merged")
        return dict(config)

    def _pair(self, name: str, half: Mapping[str, str], shape: tuple[int, ...]) -> tuple[str, str, float]:
        """Return the names of A and B, and the scale."""
        path = self._reader.directory / _FILE_NAME
        if half.keys() != {"A", "B"}:
            raise UserError(f"{path}: {name} has lora_{''.join(half)} only")
        first, second = (self._reader.infos[half[letter]].shape for letter in "AB")
        rank = self._value("r", "rank_pattern", name)
        if len(shape) != 2 or first != (rank, shape[1]) or second != (shape[0], rank):
            raise UserError(f"{path}: A {first} and B {second} of rank {rank} do not fit {name} {shape}")
        alpha = self._value("lora_alpha", "alpha_pattern", name)
        return half["A"], half["B"], alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def _value(self, field: str, pattern_field: str, name: str) -> int | float:
        """Return the rank or alpha of one matrix; a pattern matches the end of its module's name, as in PEFT."""
        module = name.removesuffix(".weight")
        for pattern, value in (self._config.get(pattern_field) or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return self._number(pattern_field, value)
        return self._number(field, self._config.get(field))

    def _number(self, field: str, value: Any) -> int | float:
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise UserError(f"{self._config_path}: {field} is {value!r}; a positive number is needed")
        return value

    def adapts(self, weight: Weight) -> bool:
        """Return whether any part of ``weight`` is changed."""
        return any(name in self._pairs for name in weight.hf)

    def apply(self, name: str, tensor: Array) -> Array:
        """Return the Hugging Face tensor ``name`` with its product added in fp32, in its own dtype."""
        if name not in self._pairs:
            return tensor
        first, second, scale = self._pairs[name]
        product = to_torch(self._reader.read(second)).float() @ to_torch(self._reader.read(first)).float()
        base = to_torch(tensor)
        return from_torch(product.mul_(scale).add_(base.float()).to(base.dtype))

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
