"""Megatron's indexed files, written and read here and by megatron-core."""

import struct
from pathlib import Path

import numpy as np
import pytest

from mindllm.data.indexed import IndexedReader, indexed_path, write_index
from mindllm.errors import UserError

SEQUENCES = [[1, 2, 3], [-100, 7], [], [2**31 - 1, 0, -(2**31), 5]]


def write(directory: Path, sequences: list[list[int]], parts: int = 1) -> Path:
    prefix = directory / "data"
    flat = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
    indexed_path(prefix, "input_ids", "bin").write_bytes(flat.tobytes())
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    write_index(indexed_path(prefix, "input_ids", "idx"), np.array_split(lengths, parts))
    return prefix


@pytest.mark.parametrize("parts", [1, 3, 9])
def test_what_is_written_is_read(tmp_path: Path, parts: int) -> None:
    reader = IndexedReader(write(tmp_path, SEQUENCES, parts), "input_ids")
    assert [reader[index].tolist() for index in range(len(reader))] == SEQUENCES
    assert reader.lengths.tolist() == [3, 2, 0, 4] and reader[0].dtype == np.int32
    reader[0][0] = 9  # a copy: writable, and the file stays as it is
    assert reader[0][0] == 1


def test_megatron_core_reads_the_same(tmp_path: Path) -> None:
    import mindllm.device  # noqa: F401  prepares the process for megatron-core

    from megatron.core.datasets.indexed_dataset import IndexedDataset

    prefix = write(tmp_path, SEQUENCES, parts=2)
    dataset = IndexedDataset(f"{prefix}_input_ids_document")
    assert len(dataset) == 4 and dataset.document_indices.tolist() == [0, 1, 2, 3, 4]
    assert [dataset[index].tolist() for index in range(4)] == SEQUENCES
    assert dataset[0].dtype == np.int32


def test_what_megatron_core_writes_is_read(tmp_path: Path) -> None:
    import mindllm.device  # noqa: F401  prepares the process for megatron-core

    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix = tmp_path / "data"
    builder = IndexedDatasetBuilder(str(indexed_path(prefix, "input_ids", "bin")), dtype=np.uint16)
    for sequence in ([1, 2, 3], [65000]):
        builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(str(indexed_path(prefix, "input_ids", "idx")))
    reader = IndexedReader(prefix, "input_ids")
    assert [reader[0].tolist(), reader[1].tolist()] == [[1, 2, 3], [65000]]


def test_offsets_go_beyond_four_gigabytes(tmp_path: Path) -> None:
    idx = tmp_path / "big.idx"
    write_index(idx, [np.full(3, 2**29, dtype=np.int32), np.full(2, 2**30, dtype=np.int32)])
    offsets = np.frombuffer(idx.read_bytes(), dtype="<i8", count=5, offset=34 + 4 * 5)
    assert offsets.tolist() == [0, 2**31, 2**32, 3 * 2**31, 3 * 2**31 + 2**32]


def damage(prefix: Path, suffix: str, start: int, data: bytes) -> None:
    path = indexed_path(prefix, "input_ids", suffix)
    content = bytearray(path.read_bytes())
    content[start : start + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("start", "data", "message"),
    [
        (0, b"XX", "is not a Megatron index file"),
        (9, struct.pack("<Q", 2), "has version 2; version 1 is read"),
        (17, b"\x07", "has element type 7"),
        (18, struct.pack("<Q", 999), "is damaged: 999 sequences need"),
        (34, struct.pack("<i", -1), "impossible lengths or offsets"),
        (34, struct.pack("<i", 2**20), r"data_input_ids_document\.bin is damaged|impossible"),
        (34 + 4 * 4, struct.pack("<q", 1), "impossible lengths or offsets"),
    ],
)
def test_a_damaged_index_is_named_with_what_is_wrong(tmp_path: Path, start: int, data: bytes, message: str) -> None:
    prefix = write(tmp_path, SEQUENCES)
    damage(prefix, "idx", start, data)
    with pytest.raises(UserError, match=message):
        IndexedReader(prefix, "input_ids")


@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    prefix = write(tmp_path, SEQUENCES)
    path = indexed_path(prefix, "input_ids", suffix)
    for size in (path.stat().st_size - 1, 10, 0):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(UserError, match=rf"document\.{suffix} (is damaged|is not)"):
            IndexedReader(prefix, "input_ids")


@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    prefix = write(tmp_path, SEQUENCES)
    indexed_path(prefix, "input_ids", suffix).unlink()
    with pytest.raises(UserError, match=rf"document\.{suffix} does not exist"):
        IndexedReader(prefix, "input_ids")


def test_offsets_beyond_4_gb_are_right(tmp_path: Path) -> None:
    import mindllm.device  # noqa: F401  prepares the process for megatron-core

    from megatron.core.datasets.indexed_dataset import IndexedDataset

    lengths = np.array([700_000_000, 600_000_000, 3], dtype=np.int32)
    write_index(indexed_path(tmp_path / "big", "text", "idx"), [lengths[:2], lengths[2:]])
    with indexed_path(tmp_path / "big", "text", "bin").open("wb") as file:  # sparse: it takes no room on the disk
        file.seek(4 * 1_300_000_000)
        file.write(np.array([7, 8, 9], dtype="<i4").tobytes())
    assert IndexedReader(tmp_path / "big", "text")[2].tolist() == [7, 8, 9]
    megatrons = IndexedDataset(f"{tmp_path}/big_text_document")  # its arrays die with it
    assert megatrons[2].tolist() == [7, 8, 9] and len(megatrons) == 3
