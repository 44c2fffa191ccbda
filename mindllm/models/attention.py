"""The one core attention: packed segments for training and scoring, a KV cache for generation."""

import math
from typing import Any

from mindllm.device import attention_segments

import torch
from torch import Tensor

from mindllm.models.packed import current_pack


class PackedAttention(torch.nn.Module):
    """Core attention injected through the layer spec; reads the segments of the current pack.

    Queries, keys and values arrive as [tokens, 1, heads, head_dim], already rotated: the pack is one "batch" row.
    """

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__()
        self.layer_number = layer_number
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return [tokens, 1, heads * head_dim]."""
        pack = current_pack()
        query, key, value = query.squeeze(1), key.squeeze(1), value.squeeze(1)
        if pack.cache is not None:
            out = pack.cache.attend(self.layer_number, query, key, value, self.scale)
        else:
            out = attention_segments(query, key, value, pack.lengths, self.scale)
        return out.flatten(1).unsqueeze(1)


class PackedRotaryEmbedding(torch.nn.Module):
    """Angles of each packed token by its own position, in the layout megatron's rotary code multiplies with.

    Replaces ``GPTModel.rotary_pos_emb``. megatron hard-codes three of the four Llama 3 scaling factors, so the inverse
    frequencies come from the checkpoint's own configuration instead.
    """

    def __init__(self, inverse_frequencies: Tensor) -> None:
        super().__init__()
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        """Asked for by GPTModel; the angles come from the pack's positions, so the length has no use."""
        return 0

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """Return [tokens, 1, 1, head_dim] fp32 angles."""
        positions = current_pack().positions.to(self.inverse_frequencies.dtype)
        angles = torch.outer(positions, self.inverse_frequencies)
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]
