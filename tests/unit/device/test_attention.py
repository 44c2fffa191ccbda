"""Attention of packed segments on CUDA, with stand-ins for what each torch release offers there."""

import sys
from types import ModuleType
from typing import Any

from mindllm.device import backend

import pytest
import torch
from torch import Tensor

LENGTHS, HEADS, GROUPS, DIM, SCALE = [3, 1, 5], 4, 2, 8, 0.3


def attention(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, scale: float) -> Tensor:
    """Causal attention, written out: one softmax for each token and head."""
    out = torch.empty_like(query)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for token in range(start, stop):
            for head in range(query.shape[1]):
                group = head * key.shape[1] // query.shape[1]
                scores = key[start : token + 1, group] @ query[token, head] * scale
                out[token, head] = scores.softmax(0) @ value[start : token + 1, group]
    return out


def varlen_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    raise AssertionError("it knows no scale")


def varlen_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    raise AssertionError("it promises no grouped keys")


def varlen_2_12(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None,
):  # fmt: skip
    assert window_size == (-1, 0) and enable_gqa and max_q == max_k == max(LENGTHS)
    assert cu_seq_q is cu_seq_k and cu_seq_q.dtype == torch.int32
    return attention(query, key, value, cu_seq_q, scale)


def flash_operator(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
                   scale=None, window_size_left=None, window_size_right=None):  # fmt: skip
    assert dropout_p == 0.0 and is_causal and not return_debug_mask and max_q == max_k == max(LENGTHS)
    assert cum_seq_q.dtype == cum_seq_k.dtype == torch.int32
    return attention(query, key, value, cum_seq_q, scale), None, None, None, None


@pytest.mark.parametrize("varlen", [None, varlen_2_10, varlen_2_11, varlen_2_12])
def test_segments_attend_with_what_each_torch_release_has(varlen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch.nn.attention.varlen")
    if varlen is not None:
        module.varlen_attn = varlen
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if varlen is not varlen_2_12:
        monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_operator)
    backend._varlen_attn_takes_groups.cache_clear()
    torch.manual_seed(0)
    query = torch.randn(sum(LENGTHS), HEADS, DIM, dtype=torch.float64)
    key, value = torch.randn(2, sum(LENGTHS), GROUPS, DIM, dtype=torch.float64)
    try:
        found = backend._flash_segments(query, key, value, LENGTHS, SCALE)
    finally:
        backend._varlen_attn_takes_groups.cache_clear()
    expected = attention(query, key, value, torch.tensor([0, 3, 4, 9]), SCALE)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(backend._sdpa_segments(query, key, value, LENGTHS, SCALE), expected)


@pytest.mark.parametrize("takes_groups", [True, False], ids=["varlen_attn", "operator"])
def test_the_real_operators_take_these_arguments_and_have_gradients(
    takes_groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_varlen_attn_takes_groups", lambda: takes_groups)
    options = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    query = torch.empty(sum(LENGTHS), HEADS, DIM, **options)
    key, value = (torch.empty(sum(LENGTHS), GROUPS, DIM, **options) for _ in range(2))
    out = backend._flash_segments(query, key, value, LENGTHS, SCALE)
    out.sum().backward()
    assert out.shape == query.shape
    assert all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in (query, key, value))
