"""Tables: parquet, arrow, csv, and directories that Hugging Face `datasets` saved."""

import codecs
import csv
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindllm.errors import UserError
from mindllm.preprocess.inputs.base import Format, Mark, Scan, open_bytes
from mindllm.preprocess.inputs.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1024  # rows


class Parquet(Format):
    """Parquet files."""

    has_schema = True

    def scan(self, path: Path) -> Scan:
        """See `Format.scan`."""
        import pyarrow.parquet as pq

        with _naming(path), pq.ParquetFile(path) as file:
            return Scan(int(file.metadata.num_rows))

    def can_seek(self, path: Path) -> bool:
        """See `Format.can_seek`."""
        return True

    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """See `Format.read`."""
        import pyarrow.parquet as pq

        number = 0
        with _naming(path), pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                group_rows = file.metadata.row_group(group).num_rows
                if number + group_rows <= skip:
                    number += group_rows
                    continue
                for batch in file.iter_batches(_BATCH, row_groups=[group]):
                    offset = min(max(skip - number, 0), batch.num_rows)
                    for place, values in enumerate(batch.slice(offset).to_pylist(), number + offset + 1):
                        yield Row(str(path), place, values, has_schema=True)
                    number += batch.num_rows


class Arrow(Format):
    """Arrow files, in the file or the stream format."""

    has_schema = True

    def scan(self, path: Path) -> Scan:
        """See `Format.scan`."""
        return Scan(sum(batch.num_rows for batch in _arrow_batches(path)))

    def can_seek(self, path: Path) -> bool:
        """See `Format.can_seek`."""
        return True

    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """See `Format.read`."""
        first = 0
        for batch in _arrow_batches(path):
            for start in range(max(skip - first, 0), batch.num_rows, _BATCH):
                for number, values in enumerate(batch.slice(start, _BATCH).to_pylist(), first + start + 1):
                    yield Row(str(path), number, values, has_schema=True)
            first += batch.num_rows


class Csv(Format):
    """csv files with a header line; every cell is text."""

    has_schema = True

    def scan(self, path: Path) -> Scan:
        """See `Format.scan`."""
        return Scan(sum(1 for _ in self.read(path, 0)))

    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """See `Format.read`."""
        csv.field_size_limit(sys.maxsize)
        with open_bytes(path) as file:
            lines = codecs.iterdecode(file, "utf-8-sig")
            reader = csv.reader(lines, strict=True)
            try:
                header = next(reader, [])
                if len(set(header)) < len(header):
                    raise UserError(f"{path}: the header names a column twice: {', '.join(header)}")
                for number, cells in islice(enumerate((row for row in reader if row), 1), skip, None):
                    yield _csv_row(str(path), number, header, cells)
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: not UTF-8 after line {reader.line_num}") from error
            except csv.Error as error:
                raise UserError(f"{path}:{reader.line_num}: not valid csv: {error}") from error


class SavedDataset(Format):
    """Directories written by `datasets.Dataset.save_to_disk`."""

    has_schema = True

    def scan(self, path: Path) -> Scan:
        """See `Format.scan`."""
        return Scan(len(_load_dataset(path)))

    def can_seek(self, path: Path) -> bool:
        """See `Format.can_seek`."""
        return True

    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """See `Format.read`."""
        dataset = _load_dataset(path)
        for start in range(skip, len(dataset), _BATCH):
            columns = dataset[start : start + _BATCH]
            for number, cells in enumerate(zip(*columns.values(), strict=True), start + 1):
                yield Row(str(path), number, dict(zip(columns, cells, strict=True)), has_schema=True)


def _csv_row(source: str, number: int, header: list[str], cells: list[str]) -> Row:
    if len(cells) != len(header):
        detail = f"the row has {len(cells)} cells, the header {len(header)}"
        return Row(source, number, {}, "wrong_number_of_cells", detail)
    return Row(source, number, dict(zip(header, cells, strict=True)))


def _arrow_batches(path: Path) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    with _naming(path), pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            yield from pa.ipc.open_stream(source)
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)  # which pyarrow does not name
            raise
        raise UserError(f"{path}: not a readable {path.suffix[1:]} file: {error}") from error


def _load_dataset(path: Path) -> Any:
    if importlib.util.find_spec("datasets") is None:
        raise UserError(f"{path} was written by Hugging Face datasets; pip install datasets reads it")
    import datasets

    if (path / "dataset_dict.json").is_file():
        raise UserError(f"{path} holds several data sets; give one of its directories: {', '.join(_splits(path))}")
    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # damaged directories surface as many types
        raise UserError(f"{path}: not a readable saved data set: {error}") from error


def _splits(path: Path) -> list[str]:
    return sorted(str(child) for child in path.iterdir() if child.is_dir())
