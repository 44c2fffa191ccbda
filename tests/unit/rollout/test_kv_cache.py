"""The slot cache: decoding from it equals attention over the whole sequences."""

from mindllm.device import attention_segments

import torch
from torch import Tensor

from mindllm.rollout.kv_cache import DecodeStep, PrefillStep, SlotCache

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 6, 0.4


def random_qkv(tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(tokens, heads, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def prefill(cache: SlotCache, lengths: list[int], slots: list[int], qkv: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Put segment i into slot ``slots[i]``."""
    rows = torch.arange(sum(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    targets = torch.tensor(slots).repeat_interleave(torch.tensor(lengths))
    return PrefillStep(cache, lengths, rows, targets, positions).attend(1, *qkv, SCALE)


def last_row(parts: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Attention output of the last token of one sequence given as consecutive (query, key, value) parts."""
    query, key, value = (torch.cat([part[index] for part in parts]) for index in range(3))
    return attention_segments(query, key, value, [len(query)], SCALE)[-1]


def cut(qkv: tuple[Tensor, Tensor, Tensor], start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(part[start:stop] for part in qkv)


def test_decoding_ragged_slots_equals_attention_over_the_whole_sequences() -> None:
    cache, prompts = SlotCache(3, 8), random_qkv(9, 0)
    out = prefill(cache, [4, 2, 3], [0, 1, 2], prompts)
    torch.testing.assert_close(out, attention_segments(*prompts, [4, 2, 3], SCALE))
    histories = [[cut(prompts, 0, 4)], [cut(prompts, 4, 6)], [cut(prompts, 6, 9)]]
    for step in range(3):
        new = random_qkv(3, 10 + step)
        positions = torch.tensor([4, 2, 3]) + step
        out = DecodeStep(cache, positions, 3).attend(1, *new, SCALE)
        for slot, history in enumerate(histories):
            history.append(cut(new, slot, slot + 1))
            torch.testing.assert_close(out[slot], last_row(history))


def test_filler_rows_give_zeros_and_write_nothing() -> None:
    cache = SlotCache(2, 4)
    prompts = random_qkv(4, 1)
    prefill(cache, [2, 2], [0, 1], prompts)
    kept = [tensor.clone() for tensor in cache.layer(1, prompts[1])]
    new = random_qkv(2, 2)
    out = DecodeStep(cache, torch.tensor([2, 0]), 1).attend(1, *new, SCALE)
    assert not bool(out[1].any())
    torch.testing.assert_close(out[0], last_row([cut(prompts, 0, 2), cut(new, 0, 1)]))
    for before, after in zip(kept, cache.layer(1, prompts[1]), strict=True):
        assert torch.equal(before[1], after[1])


def test_one_prompt_serves_several_slots() -> None:
    cache, prompt = SlotCache(3, 5), random_qkv(3, 3)
    rows, positions = torch.arange(3).repeat(3), torch.arange(3).repeat(3)
    slots = torch.arange(3).repeat_interleave(3)
    PrefillStep(cache, [3], rows, slots, positions).attend(1, *prompt, SCALE)
    new = random_qkv(3, 4)
    out = DecodeStep(cache, torch.tensor([3, 3, 3]), 3).attend(1, *new, SCALE)
    for slot in range(3):
        torch.testing.assert_close(out[slot], last_row([prompt, cut(new, slot, slot + 1)]))


def test_a_moved_sequence_decodes_as_before() -> None:
    cache, prompts = SlotCache(3, 5), random_qkv(9, 5)
    prefill(cache, [4, 2, 3], [0, 1, 2], prompts)
    cache.move(2, 0, 3)
    new = random_qkv(2, 6)
    out = DecodeStep(cache, torch.tensor([3, 2]), 2).attend(1, *new, SCALE)
    torch.testing.assert_close(out[0], last_row([cut(prompts, 6, 9), cut(new, 0, 1)]))
    torch.testing.assert_close(out[1], last_row([cut(prompts, 4, 6), cut(new, 1, 2)]))
