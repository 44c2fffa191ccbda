"""A slot-indexed key/value cache: active sequences fill the first slots, so decoding reads views and copies nothing."""

from dataclasses import dataclass

from mindllm.device import attention_segments, current_device

import torch
import torch.nn.functional as F
from torch import Tensor


class SlotCache:
    """Keys (already rotated) and values of up to ``num_slots`` sequences of up to ``max_length`` tokens.

    Per layer two tensors [num_slots, kv_heads, max_length, head_dim] of this rank's heads, made at the first write.
    """

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.num_slots, self.max_length = num_slots, max_length
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, number: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Storage of one layer; ``like`` [tokens, kv_heads, head_dim] gives shape, dtype and device."""
        if number not in self._layers:
            shape = (self.num_slots, like.shape[1], self.max_length, like.shape[2])
            self._layers[number] = (like.new_zeros(shape), like.new_zeros(shape))
        return self._layers[number]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of slot ``source`` over slot ``target``."""
        for storage in self._layers.values():
            for tensor in storage:
                tensor[target, :, :length] = tensor[source, :, :length]


@dataclass
class PrefillStep:
    """Attention of new prompts within themselves; their keys and values go to every slot that continues them.

    lengths: tokens per packed segment. rows, slots, positions: [writes] int64, packed row -> (slot, position).
    """

    cache: SlotCache
    lengths: list[int]
    rows: Tensor
    slots: Tensor
    positions: Tensor

    def attend(self, layer_number: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[tokens, heads, head_dim] queries, keys, values of the pack -> attention output of the same shape."""
        keys, values = self.cache.layer(layer_number, key)
        keys[self.slots, :, self.positions] = key[self.rows]
        values[self.slots, :, self.positions] = value[self.rows]
        return attention_segments(query, key, value, self.lengths, scale)


class DecodeStep:
    """One new token for each of the first ``num_rows`` slots; rows beyond them are filler and attend to nothing."""

    def __init__(self, cache: SlotCache, positions: Tensor, num_rows: int) -> None:
        """``positions`` [rows, filler included] int64 of the new tokens, on the device."""
        self.cache, self.num_rows = cache, num_rows
        self.positions = positions[:num_rows]
        self.slots = torch.arange(num_rows, device=current_device())
        self.key_length = int(self.positions.max()) + 1
        reach = torch.arange(self.key_length, device=current_device())
        self.visible = (reach <= self.positions[:, None])[:, None, None, :]

    def attend(self, layer_number: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[rows, heads, head_dim] -> the same; a KV head's queries run as one short sequence, so none is repeated."""
        rows = self.num_rows
        keys, values = self.cache.layer(layer_number, key)
        keys[self.slots, :, self.positions] = key[:rows]
        values[self.slots, :, self.positions] = value[:rows]
        grouped = query[:rows].unflatten(1, (key.shape[1], -1))  # [rows, kv_heads, heads / kv_heads, head_dim]
        out = F.scaled_dot_product_attention(
            grouped,
            keys[:rows, :, : self.key_length],
            values[:rows, :, : self.key_length],
            attn_mask=self.visible,
            scale=scale,
        ).flatten(1, 2)
        if query.shape[0] > rows:
            out = torch.cat((out, out.new_zeros(query.shape[0] - rows, *out.shape[1:])))
        return out
