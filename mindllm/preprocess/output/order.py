"""Which rows are written, in which order, and to which part: selection, shuffling, blending, splitting."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mindllm.errors import UserError

MixStrategy = Literal["concat", "interleave_under", "interleave_over"]
SPLIT_NAMES = ("train", "valid", "test")
_DRAWS = 1 << 16  # choices of a source drawn at a time


@dataclass(frozen=True)
class OrderOptions:
    """The user's choices."""

    max_samples: int | None = None
    shuffle: bool = False
    seed: int = 0
    split: tuple[float, ...] | None = None  # weights of train, valid and test
    mix_strategy: MixStrategy = "concat"
    interleave_probs: tuple[float, ...] | None = None  # one for each input; None = all the same


@dataclass(frozen=True)
class Order:
    """The plan.

    Attributes:
        num_rows: rows of the input.
        rows: int64 input rows in output order, possibly with repetitions; None = all of them as they come.
        parts: (name, start, stop) ranges of the output order; the name is "" where there is no split.
    """

    num_rows: int
    rows: np.ndarray | None
    parts: list[tuple[str, int, int]]

    @property
    def num_needed(self) -> int:
        """How many different input rows are needed."""
        return self.num_rows if self.rows is None else len(np.unique(self.rows))

    def needed(self, start: int, stop: int) -> np.ndarray | None:
        """Which of the input rows `start` to `stop` are needed, bool [stop - start]; None = all."""
        if self.rows is None:
            return None
        mask = np.zeros(stop - start, dtype=bool)
        inside = self.rows[(self.rows >= start) & (self.rows < stop)]
        mask[inside - start] = True
        return mask


def make_order(source_counts: list[int], options: OrderOptions) -> Order:
    """Plan the output for inputs with these numbers of rows. Depends on nothing else, so equal runs are equal.

    Raises:
        UserError: options that do not go together or do not fit the number of inputs.
    """
    total = sum(source_counts)
    rows = None if options.mix_strategy == "concat" else _interleave(source_counts, options)
    if options.interleave_probs is not None and rows is None:
        raise UserError("--interleave-probs has no effect with --mix-strategy concat")
    if options.shuffle:
        rows = np.arange(total, dtype=np.int64) if rows is None else rows
        rows = rows[_permutation(len(rows), options.seed)]
    if options.max_samples is not None and options.max_samples < (total if rows is None else len(rows)):
        rows = (np.arange(total, dtype=np.int64) if rows is None else rows)[: options.max_samples]
    return Order(total, rows, _split(total if rows is None else len(rows), options))


def _interleave(counts: list[int], options: OrderOptions) -> np.ndarray:
    """Rows drawn from the inputs: `under` until the first has run out, `over` until all have, others start again."""
    if len(counts) < 2:
        raise UserError(f"--mix-strategy {options.mix_strategy} needs at least two inputs")
    if not all(counts):
        raise UserError(f"--mix-strategy {options.mix_strategy}: input {counts.index(0) + 1} has no rows")
    if options.split is not None and options.mix_strategy == "interleave_over":
        raise UserError("--split cannot keep rows apart that --mix-strategy interleave_over repeats")
    borders = np.cumsum(_probabilities(len(counts), options))
    stream = np.random.Philox(key=np.array([options.seed, 1], dtype=np.uint64))
    drawn = np.empty(0, dtype=np.int64)
    while (stop := _stop(drawn, counts, options.mix_strategy)) is None:
        uniform = (stream.random_raw(_DRAWS) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        choices = np.minimum(np.searchsorted(borders, uniform, side="right"), len(counts) - 1)
        drawn = np.concatenate([drawn, choices])
    drawn = drawn[:stop]
    rows = np.empty(len(drawn), dtype=np.int64)
    first = 0
    for source, count in enumerate(counts):
        places = np.flatnonzero(drawn == source)
        rows[places] = first + np.arange(len(places)) % count
        first += count
    return rows


def _stop(drawn: np.ndarray, counts: list[int], strategy: MixStrategy) -> int | None:
    """Where the drawing ends, or None when more must be drawn."""
    ends = []
    for source, count in enumerate(counts):
        places = np.flatnonzero(drawn == source)
        ends.append(int(places[count - 1]) + 1 if len(places) >= count else None)
    if strategy == "interleave_under":
        return min((end for end in ends if end is not None), default=None)
    reached = [end for end in ends if end is not None]
    return max(reached) if len(reached) == len(counts) else None


def _probabilities(num_sources: int, options: OrderOptions) -> np.ndarray:
    given = options.interleave_probs
    if given is None:
        return np.full(num_sources, 1 / num_sources)
    if len(given) != num_sources:
        raise UserError(f"--interleave-probs has {len(given)} numbers for {num_sources} inputs")
    if min(given) <= 0 or abs(sum(given) - 1) > 1e-6:
        raise UserError(f"--interleave-probs must be positive and add up to 1, found {', '.join(map(str, given))}")
    return np.array(given)


def _permutation(size: int, seed: int) -> np.ndarray:
    # Sorting raw Philox words: numpy keeps bit streams fixed for ever, but not what permutation() makes of them.
    words = np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)).random_raw(size)
    return np.argsort(words, kind="stable")


def _split(size: int, options: OrderOptions) -> list[tuple[str, int, int]]:
    if options.split is None:
        return [("", 0, size)]
    if len(options.split) > len(SPLIT_NAMES) or min(options.split) < 0 or not sum(options.split):
        raise UserError(
            f"--split takes up to three weights ({', '.join(SPLIT_NAMES)}), none below 0 and not all 0, found "
            f"{', '.join(f'{weight:g}' for weight in options.split)}"
        )
    shares = np.cumsum(options.split) / sum(options.split)
    borders = [0, *(round(size * float(share)) for share in shares)]
    parts = [(name, start, stop) for name, start, stop in zip(SPLIT_NAMES, borders, borders[1:], strict=False)]
    empty = [name for (name, start, stop), weight in zip(parts, options.split, strict=True) if weight and start == stop]
    if empty:
        raise UserError(f"--split leaves no rows for {empty[0]}: there are {size} rows")
    return [part for part in parts if part[1] < part[2]]
