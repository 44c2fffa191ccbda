"""Packing: several samples in one row of a fixed length, as full as can be."""

from typing import Literal

import numpy as np

Packing = Literal["pack", "neat"]
_WINDOW = 1 << 17  # samples packed together; bounds the memory and keeps rows near where their samples came from


def pack_rows(lengths: np.ndarray, capacity: int) -> list[np.ndarray]:
    """Distribute samples over rows: longest first, each into the fullest row that has room (best fit).

    Args:
        lengths: tokens of each sample, each at most `capacity`.
        capacity: tokens of a row.

    Returns:
        For each row its samples, ascending; rows in the order of their first samples.
    """
    rows: list[np.ndarray] = []
    for start in range(0, len(lengths), _WINDOW):
        packed = _best_fit(lengths[start : start + _WINDOW], capacity)
        rows += [np.array(members, dtype=np.int64) + start for members in packed]
    return rows


def _best_fit(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # open rows by the room they have left
    rooms = 0  # bit r: some row has room r
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(sample)
        left = room - length
        if left:
            by_room[left].append(row)
            rooms |= 1 << left
    return sorted(sorted(members) for members in rows)


def fill_rate(row_lengths: np.ndarray, capacity: int) -> float:
    """Share of the rows' capacity that samples fill."""
    return float(row_lengths.sum(dtype=np.int64)) / (len(row_lengths) * capacity) if len(row_lengths) else 0.0
