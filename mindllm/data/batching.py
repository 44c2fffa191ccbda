"""How a batch is divided over data-parallel ranks and micro-batches, by tokens."""

import heapq
import math


def balanced_bins(lengths: list[int], num_bins: int) -> list[list[int]]:
    """Distribute indices over ``num_bins`` so that token sums are close (longest first onto the lightest bin).

    Bins hold counts that differ by at most one where lengths allow; indices within a bin are ascending. Deterministic.
    """
    heap = [(0, 0, number) for number in range(num_bins)]
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, count, number = heapq.heappop(heap)
        bins[number].append(index)
        heapq.heappush(heap, (load + lengths[index], count + 1, number))
    return [sorted(members) for members in bins]


def plan_micro_batches(
    lengths: list[int],
    data_parallel: int,
    max_tokens: int,
    max_sequences: int | None = None,
    multiple: int = 1,
) -> list[list[list[int]]]:
    """Divide sequences over DP ranks and micro-batches.

    Args:
        lengths: tokens per sequence.
        data_parallel: number of DP ranks.
        max_tokens: bound on the tokens of a micro-batch; a longer sequence gets a micro-batch of its own.
        max_sequences: bound on the sequences of a micro-batch, or None.
        multiple: the number of micro-batches of a rank must divide by it (pipeline size under interleaving).

    Returns:
        [rank][micro-batch] -> indices into ``lengths``. Every rank has the same number of micro-batches, as pipeline
        schedules and collectives require; where sequences run out a micro-batch is empty and the rank fills it with one
        masked token.
    """
    ranks = balanced_bins(lengths, data_parallel)
    needed = max(_bins_needed([lengths[i] for i in rank], max_tokens, max_sequences) for rank in ranks)
    while True:
        count = math.ceil(max(needed, 1) / multiple) * multiple
        plans = []
        for rank in ranks:
            bins = balanced_bins([lengths[i] for i in rank], count)
            plans.append([[rank[i] for i in members] for members in bins])
        if all(_fits(members, lengths, max_tokens, max_sequences) for plan in plans for members in plan):
            return plans
        needed = count + 1


def _bins_needed(lengths: list[int], max_tokens: int, max_sequences: int | None) -> int:
    by_tokens = math.ceil(sum(lengths) / max_tokens)
    return max(by_tokens, math.ceil(len(lengths) / max_sequences) if max_sequences else 0)


def _fits(members: list[int], lengths: list[int], max_tokens: int, max_sequences: int | None) -> bool:
    if len(members) <= 1:
        return True
    return sum(lengths[i] for i in members) <= max_tokens and (max_sequences is None or len(members) <= max_sequences)
