"""Joining parts: as streams, so that memory does not grow with the data."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mindllm.preprocess.handlers import Encoded
from mindllm.preprocess.output.order import OrderOptions, make_order
from mindllm.preprocess.output.outputs import write_outputs
from mindllm.preprocess.output.parts import join_parts, write_part

KEYS = ("input_ids", "labels")
SAMPLES, LENGTH = 50, 2000  # of each part


def batch(number: int) -> Iterator[tuple[Encoded, np.ndarray]]:
    tokens = np.full(SAMPLES * LENGTH, number, dtype=np.int32)
    lengths = {key: np.full(SAMPLES, LENGTH, dtype=np.int32) for key in KEYS}
    kept = np.arange(SAMPLES, dtype=np.int32)
    yield Encoded(SAMPLES, dict.fromkeys(KEYS, tokens), lengths, kept, []), number * SAMPLES + np.arange(SAMPLES)


def test_parts_are_joined_and_reordered_with_a_fraction_of_their_size_in_memory(tmp_path: Path) -> None:
    parts = [write_part(tmp_path / f"part-{number}", KEYS, batch(number)) for number in range(100)]
    (tmp_path / "joined").mkdir()
    order = make_order([100 * SAMPLES], OrderOptions(shuffle=True))
    tracemalloc.start()
    joined = join_parts(parts, tmp_path / "joined", KEYS)
    (output,) = write_outputs(joined, order, None, tmp_path / "joined" / "data", keeps_columns=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = (tmp_path / "joined" / "data_input_ids_document.bin").stat().st_size
    assert size == 100 * SAMPLES * LENGTH * 4 and output.num_samples == 100 * SAMPLES
    assert peak < size / 4, "of two such files"
    assert not any(path.suffix == ".tokens" for path in tmp_path.rglob("*")), "the disk holds the data only once"
