"""How one call on a worker group becomes one call per data-parallel replica, and the answers one answer again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mindllm.data.batching import balanced_bins, plan_micro_batches
from mindllm.data.sequences import Sequences


@dataclass(frozen=True)
class Share:
    """One replica's part: its sequences, micro-batch after micro-batch, and how many each micro-batch has."""

    sequences: Sequences
    counts: list[int]

    def micro_batches(self) -> list[Sequences]:
        """The sequences of each micro-batch; one may be empty."""
        start, parts = 0, []
        for count in self.counts:
            parts.append(self.sequences.select(list(range(start, start + count))))
            start += count
        return parts


@dataclass(frozen=True)
class BatchLimits:
    """What a micro-batch may hold. ``multiple``: the number of micro-batches must divide by it (PP under VPP)."""

    data_parallel: int
    max_tokens: int
    max_sequences: int | None
    multiple: int


class Scatter:
    """A division of ``sequences`` over replicas and micro-batches that can be undone on the results."""

    def __init__(self, sequences: Sequences, limits: BatchLimits, unit: int = 1) -> None:
        """``unit``: that many neighbours (a preference pair: 2) stay together in one micro-batch."""
        plan = plan_micro_batches(
            sequences.lengths.view(-1, unit).sum(1).tolist(),
            limits.data_parallel,
            limits.max_tokens,
            limits.max_sequences and max(1, limits.max_sequences // unit),
            limits.multiple,
        )
        members = [[[unit * i + k for i in bins for k in range(unit)] for bins in rank] for rank in plan]
        self._order = torch.tensor([index for rank in members for bins in rank for index in bins])
        self.shares = [
            Share(sequences.select([index for bins in rank for index in bins]), [len(bins) for bins in rank])
            for rank in members
        ]

    def gather(self, parts: list[Tensor], lengths: Tensor) -> Tensor:
        """Values of every replica, end to end, back in the original order.

        Args:
            parts: one tensor per replica: for each of its sequences as many values as ``lengths`` says.
            lengths: [n] int64, in the original order.
        """
        pieces = torch.cat(parts).split(lengths[self._order].tolist())
        restored: list[Tensor] = [torch.empty(0)] * len(pieces)
        for index, piece in zip(self._order.tolist(), pieces, strict=True):
            restored[index] = piece
        return torch.cat(restored)


def divide_requests(requests: Sequences, data_parallel: int) -> list[list[int]]:
    """Requests of each replica; the samples of a prompt stay together, so that its prefill is done once."""
    members: dict[int, list[int]] = {}
    for index, prompt in enumerate(requests.prompt_index.tolist()):
        members.setdefault(prompt, []).append(index)
    units = list(members.values()) if len(members) >= data_parallel else [[i] for i in range(len(requests))]
    weights = [sum(int(requests.prompt_lengths[i]) for i in unit) for unit in units]
    return [[i for unit in bins for i in units[unit]] for bins in balanced_bins(weights, data_parallel)]


def combine_metrics(parts: list[dict[str, float]]) -> dict[str, float]:
    """Add up what replicas report; names that end in ``_max`` are maximised."""
    return {name: (max if name.endswith("_max") else sum)(part[name] for part in parts) for name in parts[0]}
