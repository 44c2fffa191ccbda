"""What one conversion does to every tensor, and the small helpers that both directions share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from mindllm.models.families import Architecture, Weight, family_of

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_LISTED = 8


@dataclass(frozen=True)
class Recipe:
    """The weights to convert, in order; ``num_vocab_rows`` is the padded vocabulary of the mcore side.

    ``dtype`` is that of the result; None keeps every tensor's own.
    """

    architecture: Architecture
    weights: Sequence[Weight]
    num_vocab_rows: int
    dtype: torch.dtype | None

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` in the dtype of the result."""
        return tensor if self.dtype is None else tensor.to(self.dtype)


def make_recipe(architecture: Architecture, num_vocab_rows: int, dtype_name: str | None) -> Recipe:
    """Return the recipe that goes through the model layer by layer, tensors outside the layers last."""
    weights = family_of(architecture.family).weights(architecture)
    by_layer = sorted(weights, key=lambda weight: architecture.num_layers if weight.layer is None else weight.layer)
    return Recipe(architecture, by_layer, num_vocab_rows, None if dtype_name is None else _DTYPES[dtype_name])


def name_of(dtype: torch.dtype) -> str:
    """Return ``dtype`` as configs write it, e.g. ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two contiguous tensors are equal bit for bit, so that NaN equals itself and 0 differs from -0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))


def listed(names: Iterable[str]) -> str:
    """Return the first few names in order, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_LISTED} more" if len(ordered) > _MAX_LISTED else ""
    return ", ".join(ordered[:_MAX_LISTED]) + more
