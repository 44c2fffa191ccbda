"""Rows out of json, jsonl and parquet files, each row with its place for messages."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mindllm.errors import UserError

_PEEKED_ROWS = 100
_PARQUET_BATCH = 1024
_SPACE = re.compile(r"\s*")


class Row(NamedTuple):
    """One input row. `number` counts lines (jsonl) or rows (json, parquet) from 1."""

    source: str
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The row's place, as messages name it."""
        return f"{self.source}:{self.number}"


@dataclass(frozen=True)
class InputFiles:
    """The files of a run in reading order, with the number of rows of each."""

    paths: tuple[Path, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of rows in all files."""
        return sum(self.counts)

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        """Yield rows `start` to `stop` (exclusive), counted over all files.

        Raises:
            UserError: a file is damaged; the message names file and line.
        """
        first = 0
        for path, count in zip(self.paths, self.counts, strict=True):
            skipped, wanted = max(start - first, 0), min(stop - first, count)
            if skipped < wanted:
                yield from islice(_format_of(path).read(path, skipped), wanted - skipped)
            first += count


def find_inputs(inputs: list[str]) -> InputFiles:
    """Resolve files, comma-separated lists and directories, and count their rows.

    Raises:
        UserError: a path does not exist, has an unknown type, is damaged, or there are no rows at all.
    """
    paths = tuple(path for name in inputs for path in _expand(name))
    files = InputFiles(paths, tuple(_format_of(path).count(path) for path in paths))
    if not files.total:
        raise UserError(f"--input has no rows: {', '.join(str(path) for path in paths) or 'no files'}")
    return files


def columns_of(path: Path) -> list[str]:
    """Names of the columns in a file's first rows, in order of appearance."""
    names: dict[str, None] = {}
    for row in islice(_format_of(path).read(path, 0), _PEEKED_ROWS):
        names.update(dict.fromkeys(row.values))
    return list(names)


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path)))
        unknown = [str(file) for file in found if file.suffix not in FORMATS]
        if unknown:
            raise UserError(
                f"--input {name}: files of unknown type: {', '.join(unknown)}; allowed are {', '.join(sorted(FORMATS))}"
            )
        return found
    if path.exists():
        _format_of(path)
        return [path]
    parts = [part for part in name.split(",") if part]
    if len(parts) > 1:
        return [file for part in parts for file in _expand(part.strip())]
    raise UserError(f"--input {name}: no such file or directory")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


class _Format(NamedTuple):
    read: Callable[[Path, int], Iterator[Row]]  # (path, rows to skip)
    count: Callable[[Path], int]


def _format_of(path: Path) -> _Format:
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: files of type '{path.suffix}' are not read; allowed are {', '.join(sorted(FORMATS))}")
    return FORMATS[path.suffix]


def _row(path: Path, number: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: a row must be a JSON object, found {type(value).__name__}")
    return Row(str(path), number, value)


def _read_jsonl(path: Path, skip: int) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if skip:
                skip -= 1
                continue
            try:
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: not UTF-8 at byte {error.start} of the line") from error
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}") from error
            yield _row(path, number, value)


def _count_jsonl(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _read_json(path: Path, skip: int) -> Iterator[Row]:
    for number, value in islice(enumerate(_json_values(path), 1), skip, None):
        yield _row(path, number, value)


def _json_values(path: Path) -> Iterator[Any]:
    """A list's items, or one object, or several objects one after the other (json lines named .json)."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from error
    decoder, position = json.JSONDecoder(), 0
    while (position := _after_space(text, position)) < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}") from error
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _read_parquet(path: Path, skip: int) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                group_rows = file.metadata.row_group(group).num_rows
                if number + group_rows <= skip:
                    number += group_rows
                    continue
                for batch in file.iter_batches(_PARQUET_BATCH, row_groups=[group]):
                    for values in batch.to_pylist():
                        number += 1
                        if number > skip:
                            yield Row(str(path), number, values)
    except pa.ArrowException as error:
        raise UserError(f"{path}: damaged parquet file after row {number}: {error}") from error


def _count_parquet(path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable parquet file: {error}") from error


FORMATS: dict[str, _Format] = {
    ".json": _Format(_read_json, lambda path: sum(1 for _ in _json_values(path))),
    ".jsonl": _Format(_read_jsonl, _count_jsonl),
    ".parquet": _Format(_read_parquet, _count_parquet),
}
