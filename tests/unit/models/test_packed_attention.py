"""Packed attention, rotary angles and norms, each against a plain or transformers' implementation."""

from mindllm.device import attention_segments

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from mindllm.models.attention import PackedRotaryEmbedding
from mindllm.models.norm import RMSNorm
from mindllm.models.packed import PackedForward, current_pack, packed_forward


def masked_softmax_attention(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """The same by one [tokens, tokens] mask per head, KV heads repeated."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    segment = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    visible = (segment[:, None] == segment[None]) & torch.ones(len(segment), len(segment)).tril().bool()
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, -torch.inf).softmax(-1), value)


@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [4, 4, 2, 7, 7, 7, 1], [3, 1, 3]])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_segments_attend_causally_and_only_within_themselves(lengths: list[int], kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(lengths), heads, 6) for heads in (4, kv_heads, kv_heads)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    weights = torch.randn(shapes[0], generator=generator, dtype=torch.float64)
    ours = attention_segments(*inputs, lengths, 0.3)
    expected = masked_softmax_attention(*inputs, lengths, 0.3)
    torch.testing.assert_close(ours, expected)
    gradients = torch.autograd.grad((ours * weights).sum(), inputs)
    for gradient, reference in zip(gradients, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        torch.testing.assert_close(gradient, reference)


def test_rotary_angles_follow_each_token_s_own_position() -> None:
    positions = torch.tensor([0, 1, 2, 0, 0, 1, 77])
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=4))
    cosine, sine = theirs(torch.zeros(1), positions[None])
    rotary = PackedRotaryEmbedding(theirs.inv_freq)
    with packed_forward(PackedForward(positions, [3, 1, 3])):
        angles = rotary()
    assert angles.shape == (7, 1, 1, 16)
    torch.testing.assert_close(angles[:, 0, 0].cos(), cosine[0])
    torch.testing.assert_close(angles[:, 0, 0].sin(), sine[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_equals_hugging_face_s(dtype: torch.dtype) -> None:
    class Config:
        params_dtype, sequence_parallel = dtype, True

    ours, theirs = RMSNorm(Config, 24, eps=1e-3), LlamaRMSNorm(24, eps=1e-3).to(dtype)
    assert ours.weight.sequence_parallel
    with torch.no_grad():
        ours.weight.copy_(theirs.weight.normal_(generator=torch.Generator().manual_seed(0)))
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 0.01  # one rounding step of bf16 is 2**-8
    torch.testing.assert_close(ours(x), theirs(x), rtol=tolerance, atol=tolerance)
    assert ours(x).dtype == dtype


def test_the_pack_in_progress_is_the_innermost_one_and_ends_with_its_block() -> None:
    outer, inner = PackedForward(torch.arange(1), [1]), PackedForward(torch.arange(2), [2])
    with packed_forward(outer):
        with pytest.raises(KeyError), packed_forward(inner):
            assert current_pack() is inner
            raise KeyError
        assert current_pack() is outer
    with pytest.raises(IndexError):
        current_pack()
