"""Megatron's indexed files: `.bin` holds int32 tokens one sequence after the other, `.idx` where each begins.

Layout of `.idx` (little endian): 9 bytes magic, uint64 version 1, uint8 element type, uint64 number of sequences,
uint64 number of document borders, int32 lengths, int64 byte offsets, int64 document borders. Every sequence is a
document here.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mindllm.errors import UserError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_INT32 = 4
# Megatron's element type codes, for files other tools wrote.
_ELEMENT_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def indexed_path(prefix: str | Path, key: str, suffix: str) -> Path:
    """Path of an indexed file, `suffix` being "bin" or "idx"."""
    return Path(f"{prefix}_{key}_document.{suffix}")


def write_index(path: Path, lengths: Sequence[np.ndarray]) -> None:
    """Write the `.idx` of int32 sequences.

    Args:
        path: where to.
        lengths: the sequences' lengths in order, in any number of int32 arrays.
    """
    count = sum(len(part) for part in lengths)
    with path.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, 1, _INT32, count, count + 1))
        for part in lengths:
            file.write(part.astype("<i4").tobytes())
        offset = 0
        for part in lengths:
            ends = offset + 4 * np.cumsum(part, dtype=np.int64)
            file.write((ends - 4 * part.astype(np.int64)).astype("<i8").tobytes())
            offset = int(ends[-1]) if len(ends) else offset
        for start in range(0, count + 1, 1 << 20):
            file.write(np.arange(start, min(start + (1 << 20), count + 1), dtype="<i8").tobytes())


class IndexedReader:
    """Random access to the sequences of an indexed file pair, memory-mapped and checked when opened.

    Attributes:
        lengths: int32 [num_sequences].
    """

    def __init__(self, prefix: str | Path, key: str) -> None:
        """Open and check the files.

        Raises:
            UserError: a file is missing, is not an indexed file, or is damaged; the message says which and how.
        """
        self._idx = indexed_path(prefix, key, "idx")
        self._bin = indexed_path(prefix, key, "bin")
        for path in (self._idx, self._bin):
            if not path.is_file():
                raise UserError(f"{path} does not exist")
        self._dtype, count, borders = self._read_header()
        index = np.memmap(self._idx, dtype=np.uint8, mode="r")[_HEADER.size :]
        expected = 12 * count + 8 * borders
        # A multimodal index carries one more byte for each sequence, which text does not need.
        if len(index) not in (expected, expected + count):
            raise UserError(
                f"{self._idx} is damaged: {count} sequences need {_HEADER.size + expected} bytes, "
                f"the file has {_HEADER.size + len(index)}"
            )
        self.lengths = np.asarray(index[: 4 * count].view("<i4"))
        self._offsets = index[4 * count : 12 * count].view("<i8")
        self._tokens = self._map_tokens()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Sequence `index` as int32 [length], a copy."""
        start = int(self._offsets[index]) // self._dtype.itemsize
        return np.array(self._tokens[start : start + int(self.lengths[index])], dtype=np.int32)

    def _read_header(self) -> tuple[np.dtype, int, int]:
        with self._idx.open("rb") as file:
            header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise UserError(f"{self._idx} is not a Megatron index file")
        _, version, code, count, borders = _HEADER.unpack(header)
        if version != 1:
            raise UserError(f"{self._idx} has version {version}; version 1 is read")
        if code not in _ELEMENT_TYPES:
            raise UserError(f"{self._idx} has element type {code}; integer types {sorted(_ELEMENT_TYPES)} are read")
        return np.dtype(_ELEMENT_TYPES[code]), count, borders

    def _map_tokens(self) -> np.ndarray:
        size = self._bin.stat().st_size
        ends = self._offsets + self.lengths.astype(np.int64) * self._dtype.itemsize
        valid = bool((self.lengths >= 0).all() and (self._offsets >= 0).all()) if len(self) else True
        needed = int(ends.max()) if len(self) else 0
        if not valid or bool((self._offsets % self._dtype.itemsize).any()):
            raise UserError(f"{self._idx} is damaged: it holds impossible lengths or offsets")
        if size != needed:
            raise UserError(f"{self._bin} is damaged: {self._idx.name} needs {needed} bytes, the file has {size}")
        if not size:
            return np.empty(0, self._dtype)
        return np.memmap(self._bin, dtype=self._dtype, mode="r")
