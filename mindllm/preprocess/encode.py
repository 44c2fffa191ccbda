"""Rows to parts, by one process or several; the result is the same to the byte for any number of either."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mindllm.preprocess.handlers import Encoded, Handler
from mindllm.preprocess.inputs.readers import InputFiles
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.options import PreprocessOptions
from mindllm.preprocess.output.order import Order
from mindllm.preprocess.output.parts import Part, write_part
from mindllm.preprocess.pool import Job, map_in_order
from mindllm.preprocess.progress import Progress

_BATCH = 256  # rows encoded in one call
_PARTS_PER_WORKER = 32  # small parts, so that no worker waits long for the last one of another


def encode_parts(
    job: Job, kind: type[Handler], files: InputFiles, order: Order, staging: Path, options: PreprocessOptions
) -> list[Part]:
    """Encode the rows that are needed into parts below `staging`, in input order."""
    progress = Progress(order.num_needed, options.log_interval)
    n_subs = options.n_subs or _default_n_subs(files, options.workers)
    if n_subs == 1:
        batches = _batches(files, 0, files.total, order.needed(0, files.total))
        encoded = map_in_order(_encode_batch, batches, job, options.workers)
        parts = [write_part(staging / "part-0", kind.keys, _reported(encoded, progress))]
    else:
        parts = []
        for part in map_in_order(_encode_part, _part_tasks(files, order, n_subs, staging), job, options.workers):
            parts.append(part)
            progress.update(sum(part.rows_in for part in parts))
    progress.finish(sum(part.rows_in for part in parts))
    return parts


def _default_n_subs(files: InputFiles, workers: int) -> int:
    """Workers read for themselves where a part can be read without what is before it."""
    return workers * _PARTS_PER_WORKER if workers > 1 and files.can_seek else 1


class _Batch(NamedTuple):
    rows: list[Row]
    numbers: np.ndarray  # of the rows in the whole input, int64


@dataclass(frozen=True)
class _PartTask:
    files: InputFiles
    start: int
    stop: int
    needed: np.ndarray | None
    directory: Path


def _part_tasks(files: InputFiles, order: Order, n_subs: int, staging: Path) -> Iterator[_PartTask]:
    borders = [files.total * part // n_subs for part in range(n_subs + 1)]
    for number, (start, stop) in enumerate(pairwise(borders)):
        yield _PartTask(files, start, stop, order.needed(start, stop), staging / f"part-{number}")


def _encode_part(handler: Handler, task: _PartTask) -> Part:
    batches = _batches(task.files, task.start, task.stop, task.needed)
    return write_part(task.directory, handler.keys, (_encode_batch(handler, batch) for batch in batches))


def _encode_batch(handler: Handler, batch: _Batch) -> tuple[Encoded, np.ndarray]:
    return handler.encode(batch.rows), batch.numbers


def _batches(files: InputFiles, start: int, stop: int, needed: np.ndarray | None) -> Iterator[_Batch]:
    everything = enumerate(files.rows(start, stop), start)
    numbered = (pair for pair in everything if needed is None or needed[pair[0] - start])
    while batch := list(islice(numbered, _BATCH)):
        yield _Batch([row for _, row in batch], np.array([number for number, _ in batch], dtype=np.int64))


def _reported(
    batches: Iterator[tuple[Encoded, np.ndarray]], progress: Progress
) -> Iterator[tuple[Encoded, np.ndarray]]:
    done = 0
    for encoded, numbers in batches:
        yield encoded, numbers
        done += encoded.rows_in
        progress.update(done)
