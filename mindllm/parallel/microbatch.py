"""From jagged sequences to the packed tensors one forward pass reads."""

from dataclasses import dataclass
from typing import Literal

from mindllm.device import current_device

import torch
from torch import Tensor

from mindllm.data.sequences import PER_RESPONSE_TOKEN, PER_SEQUENCE, Sequences
from mindllm.models.packed import PackedForward


@dataclass
class MicroBatch:
    """One packed forward and what its loss needs.

    tokens: [tokens] int64 on the device, sequences end to end (and a masked filler segment where the layout needs one).
    pack: positions, segment lengths and the rows the head is applied to, see ``Rows``.
    targets: [response tokens] int64, the response tokens themselves.
    sequences: the sequences it was made from, their per-token fields on the device.
    """

    tokens: Tensor
    pack: PackedForward
    targets: Tensor
    sequences: Sequences


Rows = Literal["actions", "states", "last"]
"""Which hidden states the head reads. ``actions``: those that predict the response tokens [response tokens].
``states``: these and the one after the last token [response tokens + sequences], sequence by sequence. ``last``: that
of each sequence's last token [sequences]."""


def make_micro_batch(sequences: Sequences, multiple: int = 1, rows: Rows = "actions") -> MicroBatch:
    """Pack ``sequences``; the packed length becomes a positive multiple of ``multiple`` (TP where SP is on).

    An empty batch becomes one filler segment, so that a rank without sequences still takes part in every collective.
    """
    device = current_device()
    total = int(sequences.lengths.sum())
    filler = -total % multiple if total else multiple
    lengths = sequences.lengths.tolist()
    segments = [*lengths, filler] if filler else lengths
    tokens = torch.cat((sequences.tokens, torch.zeros(filler, dtype=torch.int64)))
    positions = torch.cat([torch.arange(length) for length in segments])
    responses = _tail_rows(sequences, sequences.response_lengths)
    if rows == "actions":
        read = responses - 1
    else:
        read = _tail_rows(sequences, sequences.response_lengths + 1 if rows == "states" else 1)
    pack = PackedForward(positions.to(device), segments, read.to(device))
    return MicroBatch(tokens.to(device), pack, sequences.tokens[responses].to(device), _on(device, sequences))


def _tail_rows(sequences: Sequences, counts: Tensor | int) -> Tensor:
    """Rows of ``sequences.tokens`` that hold the last ``counts`` tokens of each sequence, in order."""
    ends = sequences.lengths.cumsum(0)
    counts = torch.as_tensor(counts).expand_as(ends)
    first = (ends - counts).repeat_interleave(counts)
    within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return first + within


def _on(device: torch.device, sequences: Sequences) -> Sequences:
    """The same sequences with per-token and per-sequence values on ``device``; lengths and tokens stay on the host."""
    moved = {
        name: value.to(device)
        for name in (*PER_RESPONSE_TOKEN, *PER_SEQUENCE)
        if name != "response_lengths" and (value := getattr(sequences, name)) is not None
    }
    return Sequences(sequences.tokens, sequences.prompt_lengths, sequences.response_lengths, **moved)
