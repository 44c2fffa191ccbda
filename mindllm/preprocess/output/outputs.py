"""From joined samples to the files of each output: as they are, reordered, split, or packed."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindllm.data.indexed import indexed_path, write_index
from mindllm.data.manifest import columns_path
from mindllm.data.sidecar import write_sidecar
from mindllm.preprocess.output.order import SPLIT_NAMES, Order
from mindllm.preprocess.output.packing import Packing, fill_rate, pack_rows
from mindllm.preprocess.output.parts import ID_KEYS, Joined
from mindllm.preprocess.tokenize.encoding import IGNORED

SEGMENTS = "segments"  # key of packed rows' boundaries: the lengths of the samples in a row


@dataclass(frozen=True)
class PackingOptions:
    """How rows are packed."""

    kind: Packing
    capacity: int  # tokens of a row
    pad_id: int  # fills rows up under "pack"


@dataclass
class Output:
    """What lies under one prefix.

    Attributes:
        name: of the split, "" where there is none.
        files: data files, still in the staging directory.
        lengths: tokens of every written row (of both dialogues of a pair together), padding apart, int64 [num_rows].
        num_samples: samples in these rows.
        trained_tokens: labels in them that are trained.
        keys: of the indexed files.
        null_cells: null cells of each extra column.
        fill_rate: share of packed rows that is filled; None where rows are not packed.
    """

    name: str
    files: list[Path]
    lengths: np.ndarray
    num_samples: int
    trained_tokens: int
    keys: list[str]
    null_cells: dict[str, int]
    fill_rate: float | None = None


def output_prefix(prefix: Path, split: str) -> Path:
    """The prefix of a split's files."""
    return prefix.with_name(f"{prefix.name}_{split}") if split else prefix


def output_prefixes(prefix: Path, is_split: bool) -> list[Path]:
    """All prefixes that belong to a run."""
    return [output_prefix(prefix, name) for name in SPLIT_NAMES] if is_split else [prefix]


def write_outputs(
    joined: Joined, order: Order, packing: PackingOptions | None, prefix: Path, keeps_columns: bool
) -> list[Output]:
    """Write data files for every part of `order` under `prefix` and the part's name."""
    if order.rows is None and packing is None and order.parts[0][0] == "":
        return [_as_they_are(joined, prefix, keeps_columns)]
    outputs = []
    for name, start, stop in order.parts:
        samples = _samples_in_order(joined, order, start, stop)
        target = output_prefix(prefix, name)
        if packing is None:
            outputs.append(_reordered(joined, samples, name, target, keeps_columns))
        else:
            outputs.append(_packed(joined, samples, name, target, packing))
    return outputs


def _as_they_are(joined: Joined, prefix: Path, keeps_columns: bool) -> Output:
    files = []
    for key, lengths in joined.lengths.items():
        tokens, index = indexed_path(prefix, key, "bin"), indexed_path(prefix, key, "idx")
        joined.tokens_file(key).replace(tokens)
        write_index(index, [lengths])
        files += [tokens, index]
    null_cells: dict[str, int] = {}
    if keeps_columns:
        null_cells = write_sidecar(columns_path(prefix), joined.spools)
        files.append(columns_path(prefix))
    return Output(
        "",
        files,
        _text_lengths(joined.lengths),
        len(joined.rows),
        joined.trained_tokens,
        list(joined.lengths),
        null_cells,
    )


def _samples_in_order(joined: Joined, order: Order, start: int, stop: int) -> np.ndarray:
    """The samples (int64) of a range of the output order; rows that were dropped have none."""
    sample_of_row = np.full(order.num_rows, -1, dtype=np.int64)
    sample_of_row[joined.rows] = np.arange(len(joined.rows))
    samples = sample_of_row[start:stop] if order.rows is None else sample_of_row[order.rows[start:stop]]
    found: np.ndarray = samples[samples >= 0]
    return found


def _reordered(joined: Joined, samples: np.ndarray, name: str, prefix: Path, keeps_columns: bool) -> Output:
    files = []
    for key, lengths in joined.lengths.items():
        tokens, index = indexed_path(prefix, key, "bin"), indexed_path(prefix, key, "idx")
        _gather(joined.tokens_file(key), lengths, _one_by_one(samples), tokens)
        write_index(index, [lengths[samples]])
        files += [tokens, index]
    null_cells: dict[str, int] = {}
    if keeps_columns:
        null_cells = write_sidecar(columns_path(prefix), joined.spools, samples)
        files.append(columns_path(prefix))
    chosen = {key: lengths[samples] for key, lengths in joined.lengths.items()}
    trained, keys = _count_trained(files), list(joined.lengths)
    return Output(name, files, _text_lengths(chosen), len(samples), trained, keys, null_cells)


def _packed(joined: Joined, samples: np.ndarray, name: str, prefix: Path, packing: PackingOptions) -> Output:
    rows = pack_rows(joined.lengths["input_ids"][samples], packing.capacity)
    members = [samples[row].tolist() for row in rows]
    filled = np.array([int(joined.lengths["input_ids"][row].sum()) for row in members], dtype=np.int32)
    files = []
    for key, lengths in joined.lengths.items():
        tokens, index = indexed_path(prefix, key, "bin"), indexed_path(prefix, key, "idx")
        if packing.kind == "pack":
            padding = IGNORED if key == "labels" else packing.pad_id
            _gather(joined.tokens_file(key), lengths, members, tokens, packing.capacity, padding)
            write_index(index, [np.full(len(rows), packing.capacity, dtype=np.int32)])
        else:
            _gather(joined.tokens_file(key), lengths, members, tokens)
            write_index(index, [filled])
        files += [tokens, index]
    if packing.kind == "neat":
        tokens, index = indexed_path(prefix, SEGMENTS, "bin"), indexed_path(prefix, SEGMENTS, "idx")
        with tokens.open("wb") as file:
            for row in members:
                file.write(joined.lengths["input_ids"][row].astype("<i4").tobytes())
        write_index(index, [np.array([len(row) for row in members], dtype=np.int32)])
        files += [tokens, index]
    keys = [*joined.lengths, *([SEGMENTS] if packing.kind == "neat" else [])]
    rate = fill_rate(filled, packing.capacity)
    return Output(name, files, filled.astype(np.int64), len(samples), _count_trained(files), keys, {}, rate)


def _gather(
    source: Path,
    lengths: np.ndarray,
    rows: Iterable[Sequence[int]],
    target: Path,
    capacity: int | None = None,
    padding: int = 0,
) -> None:
    """Write rows of samples one after the other, filled up to `capacity`; reads what it needs and maps nothing."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    offsets *= 4
    with source.open("rb") as file, target.open("wb", buffering=1 << 20) as out:
        descriptor = file.fileno()
        for row in rows:
            written = 0
            for sample in row:
                start, size = int(offsets[sample]), int(offsets[sample + 1] - offsets[sample])
                out.write(os.pread(descriptor, size, start))
                written += size // 4
            if capacity is not None:
                out.write(np.full(capacity - written, padding, dtype="<i4").tobytes())


def _count_trained(files: Sequence[Path]) -> int:
    count = 0
    for path in files:
        if path.name.endswith("labels_document.bin"):
            with path.open("rb") as file:
                while data := file.read(1 << 22):
                    count += int((np.frombuffer(data, dtype="<i4") != IGNORED).sum())
    return count


def _one_by_one(samples: np.ndarray, block: int = 1 << 16) -> Iterator[list[int]]:
    for start in range(0, len(samples), block):
        for sample in samples[start : start + block].tolist():
            yield [sample]


def _text_lengths(lengths: dict[str, np.ndarray]) -> np.ndarray:
    ids = [array.astype(np.int64) for key, array in lengths.items() if key.endswith(ID_KEYS)]
    total: np.ndarray = np.stack(ids).sum(axis=0)
    return total
