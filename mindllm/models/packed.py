"""How packed tokens reach every layer of an unmodified GPTModel: positions, segments and KV cache of one forward."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class LayerCache(Protocol):
    """What an attention layer needs of a KV cache while generating."""

    def attend(self, layer_number: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the new keys and values of this layer and return the attention output [tokens, heads, head_dim]."""


@dataclass
class PackedForward:
    """One micro-batch of sequences laid end to end.

    positions: [tokens] int64, position of each token within its own sequence.
    lengths: tokens per segment, in order; a Python list, because it steers control flow.
    score_index: [scores] int64 rows whose next-token logits are wanted, or None for all of them.
    cache: KV cache to read and write instead of attending within the pack.
    """

    positions: Tensor
    lengths: list[int]
    score_index: Tensor | None = None
    cache: LayerCache | None = None


_current: list[PackedForward] = []


@contextlib.contextmanager
def packed_forward(batch: PackedForward) -> Iterator[None]:
    """Make ``batch`` the one that attention and rotary embedding see within the block."""
    _current.append(batch)
    try:
        yield
    finally:
        _current.pop()


def current_pack() -> PackedForward:
    """The pack of the forward in progress."""
    return _current[-1]
