"""Reading and writing whole arrays: one file open at a time, no buffer in between."""

import ctypes
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np

from mindllm.errors import naming_file
from mindllm.formats.arrays import Array, raw

# For larger writes Linux caches the file in large folios; a virtual machine waits four times as long for their memory.
_WRITE_BYTES = 2**18
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


class Closing(ABC):
    """Something that is closed at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LastFile(Closing):
    """Keeps the file that was used last open, for the next use."""

    def __init__(self, mode: Literal["rb", "r+b"] = "rb") -> None:
        self._mode = mode
        self._path: Path | None = None
        self._file: IO[bytes] | None = None

    def open(self, path: Path) -> IO[bytes]:
        """Return ``path`` open and unbuffered, closing the one before."""
        if self._file is None or self._path != path:
            self.close()
            self._file, self._path = path.open(self._mode, buffering=0), path
        return self._file

    def close(self) -> None:
        """Close the file that is open, if one is."""
        if self._file is not None:
            self._file.close()
            self._file = None


def keep_freed_memory() -> None:
    """Let the arrays of this process have the memory of those before, where the C library is glibc.

    It otherwise gives large arrays back to the system one by one, and getting and clearing the next one's memory takes
    as long as reading a file into it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def read_array(file: IO[bytes], offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return the array that lies at ``offset``. Raises EOFError when the file ends before it does."""
    array = np.empty(shape, dtype)
    read_into(file, offset, array)
    return array


def read_into(file: IO[bytes], offset: int, array: Array) -> None:
    """Fill a contiguous ``array`` from ``offset`` on. Raises EOFError when the file ends before it is full."""
    view, done = raw(array), 0
    with naming_file(file.name):
        file.seek(offset)
        while done < len(view):
            count = file.readinto(view[done:])  # type: ignore[attr-defined]  # binary files have it
            if not count:
                raise EOFError("it ends inside a tensor")
            done += count


def write_all(file: IO[bytes], data: memoryview) -> None:
    """Write all of ``data``, also to an unbuffered file, which may take less of it at a time."""
    done = 0
    with naming_file(file.name):
        while done < len(data):
            done += file.write(data[done : done + _WRITE_BYTES])
