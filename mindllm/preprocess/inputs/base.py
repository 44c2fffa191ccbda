"""What a file type is, and how its bytes are opened."""

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, cast

from mindllm.errors import UserError
from mindllm.preprocess.inputs.rows import Row


class Mark(NamedTuple):
    """A place in a file from which reading can start."""

    row: int  # rows before it
    line: int  # lines before it
    offset: int  # bytes before it


@dataclass(frozen=True)
class Scan:
    """What one pass over a file found out."""

    num_rows: int
    marks: tuple[Mark, ...] = ()


class Format(ABC):
    """A file type.

    `has_schema` says that all rows of a file have the same columns, and the same keys in every object: a null then
    means a value that is null as well as one that is absent.
    """

    has_schema: ClassVar[bool] = False

    @abstractmethod
    def scan(self, path: Path) -> Scan:
        """Count the rows. Raises UserError when the file cannot be read."""

    def can_seek(self, path: Path) -> bool:
        """Whether reading can start anywhere at little cost."""
        return False

    @abstractmethod
    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """Yield the rows after the first `skip`. Raises UserError when the file is damaged."""


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a plain, .gz or .zst file for reading its uncompressed bytes.

    Raises:
        UserError: the compressed data is damaged (also while reading, inside the block).
        OSError: the file cannot be read, likewise; it names the file.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                yield cast(BinaryIO, file)
        elif path.suffix == ".zst":
            import pyarrow as pa

            with io.BufferedReader(pa.input_stream(str(path), compression="zstd"), 1 << 20) as file:
                yield file
        else:
            with path.open("rb") as file:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip data: {error}") from error
    except OSError as error:
        if path.suffix == ".zst" and error.errno is None:
            raise UserError(f"{path}: damaged zstd data: {error}") from error
        error.filename = str(path)  # which pyarrow and reading do not name
        raise
