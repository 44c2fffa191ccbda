"""What one conversion does to every tensor, the two ends it connects, and the small helpers that they share."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mindllm.errors import UserError
from mindllm.formats.arrays import DTYPES, Array, cast, name_of
from mindllm.models.families import EMBEDDING_KEY, Architecture, Weight, family_of

Dtype = np.dtype[Any]
_WEIGHT_DTYPES = tuple(DTYPES[name] for name in ("float32", "bfloat16", "float16"))
_MAX_LISTED = 8


class Source(Protocol):
    """A checkpoint to read, seen as megatron-core's tensors without padding and without a layer axis."""

    directory: Path

    def dtype(self, weight: Weight) -> Dtype:
        """Return the dtype of what :meth:`read` returns."""

    def read(self, weight: Weight) -> Array:
        """Return the tensor of ``weight.mcore_shape``, contiguous."""

    def origin(self, weight: Weight) -> str:
        """Return how this side calls the weight, for messages."""


class Target(Protocol):
    """A checkpoint being written from the same tensors; each weight of the model is written once, in any order.

    Several processes may write one: forked copies of the target each take a share, and the original merges what they
    say at the end.
    """

    def share(self, worker: int, num_workers: int) -> Sequence[Weight]:
        """Take one of ``num_workers`` shares in this process, and return the weights to write for it."""

    def end_share(self) -> Any:
        """Complete this process's share, and return what the original must know."""

    def merge(self, results: Sequence[Any]) -> None:
        """Learn what the processes with the shares have written."""

    def write(self, weight: Weight, tensor: Array) -> None:
        """Write one tensor of ``weight.mcore_shape``."""

    def finish(self) -> None:
        """Write what makes the result readable."""


@dataclass(frozen=True)
class Recipe:
    """The weights to convert, in order; ``num_vocab_rows`` is the padded vocabulary of the mcore side.

    ``dtype`` is that of the result; None keeps every tensor's own, and some weights always keep it.
    """

    architecture: Architecture
    weights: Sequence[Weight]
    num_vocab_rows: int
    dtype: Dtype | None

    def dtype_of(self, source: Source, weight: Weight) -> Dtype:
        """Return the dtype that ``weight`` has in the result."""
        return source.dtype(weight) if weight.keeps_dtype or self.dtype is None else self.dtype

    def produce(self, source: Source, weight: Weight) -> Array:
        """Return ``weight`` in the dtype of the result."""
        return cast(source.read(weight), self.dtype_of(source, weight))

    def stored_dtype(self, source: Source) -> Dtype:
        """Return the dtype that the result's config should state: that of its embedding."""
        return self.dtype_of(source, next(weight for weight in self.weights if weight.mcore == EMBEDDING_KEY))

    def stored_bytes(self, source: Source) -> list[int]:
        """Return how many bytes each weight takes in the result."""
        shapes = [
            (self.num_vocab_rows, *weight.mcore_shape[1:]) if weight.has_vocab_rows else weight.mcore_shape
            for weight in self.weights
        ]
        pairs = zip(self.weights, shapes, strict=True)
        return [math.prod(shape) * self.dtype_of(source, weight).itemsize for weight, shape in pairs]


def make_recipe(architecture: Architecture, num_vocab_rows: int, dtype_name: str | None) -> Recipe:
    """Return the recipe that goes through the model layer by layer, tensors outside the layers last."""
    dtype = None if dtype_name is None else DTYPES[dtype_name]
    return Recipe(architecture, ordered_weights(architecture), num_vocab_rows, dtype)


def ordered_weights(architecture: Architecture) -> list[Weight]:
    """Return the weights of a model layer by layer, those outside the layers last."""
    weights = family_of(architecture.family).weights(architecture)
    return sorted(weights, key=lambda weight: architecture.num_layers if weight.layer is None else weight.layer)


def share_of(weights: Sequence[Weight], worker: int, num_workers: int) -> Sequence[Weight]:
    """Return the run of ``weights`` for one of ``num_workers``, with about the same number of elements for each."""
    ends = list(accumulate(math.prod(weight.mcore_shape) for weight in weights))
    bounds = [bisect_left(ends, ends[-1] * part / num_workers) for part in (worker, worker + 1)]
    return weights[bounds[0] : bounds[1] if worker + 1 < num_workers else len(weights)]


def transfer(source: Source, target: Target, recipe: Recipe, weights: Sequence[Weight]) -> None:
    """Write ``weights``, one at a time."""
    for weight in weights:
        target.write(weight, recipe.produce(source, weight))


def check_dtype(where: Path, name: str, dtype: Dtype) -> None:
    """Raise UserError unless weights of ``dtype`` can be converted; ``where`` and ``name`` say whose it is."""
    if dtype not in _WEIGHT_DTYPES:
        raise UserError(f"{where}: {name} is {name_of(dtype)}; weights of fp32, bf16 and fp16 can be converted")


def listed(names: Iterable[str]) -> str:
    """Return the first few names in order, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_LISTED} more" if len(ordered) > _MAX_LISTED else ""
    return ", ".join(ordered[:_MAX_LISTED]) + more
