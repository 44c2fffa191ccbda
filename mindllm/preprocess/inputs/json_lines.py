"""Rows as lines: jsonl and txt."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from mindllm.preprocess.inputs.base import Format, Mark, Scan, open_bytes
from mindllm.preprocess.inputs.rows import Row

_ROWS_PER_MARK = 4096
_BOM = b"\xef\xbb\xbf"


class LineFormat(Format):
    """Files with one row a line; lines of white space only are no rows."""

    def scan(self, path: Path) -> Scan:
        """See `Format.scan`. Marks let parts of a plain file be read without reading what is before them."""
        rows, offset, marks = 0, 0, []
        with open_bytes(path) as file:
            for number, line in enumerate(file):
                if not line.isspace():
                    if rows % _ROWS_PER_MARK == 0 and rows:
                        marks.append(Mark(rows, number, offset))
                    rows += 1
                offset += len(line)
        return Scan(rows, tuple(marks) if self.can_seek(path) else ())

    def can_seek(self, path: Path) -> bool:
        """See `Format.can_seek`."""
        return path.suffix not in (".gz", ".zst")

    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """See `Format.read`."""
        start = max((mark for mark in marks if mark.row <= skip), default=Mark(0, 0, 0))
        with open_bytes(path) as file:
            if start.offset:
                file.seek(start.offset)
            lines = ((n, line) for n, line in enumerate(file, start.line + 1) if not line.isspace())
            for number, line in islice(lines, skip - start.row, None):
                yield self.parse(str(path), number, line.removeprefix(_BOM) if number == 1 else line)

    def parse(self, source: str, number: int, line: bytes) -> Row:
        """The row a line holds."""
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            return Row(source, number, {}, "not_utf8", f"not UTF-8 at byte {error.start} of the line")
        return self.parse_text(source, number, text)

    def parse_text(self, source: str, number: int, text: str) -> Row:
        """The row a decoded line holds."""
        raise NotImplementedError


class JsonLines(LineFormat):
    """One JSON object a line."""

    def parse_text(self, source: str, number: int, text: str) -> Row:
        """See `LineFormat.parse_text`."""
        try:
            row = object_row(source, number, value := json.loads(text, object_pairs_hook=unique_keys))
            hint = "; a file that is one list of rows is named .json" if isinstance(value, list) else ""
            return row._replace(detail=row.detail + hint)
        except json.JSONDecodeError as error:
            return Row(source, number, {}, "invalid_json", f"not valid JSON: {error.msg} at column {error.colno}")
        except DuplicateKey as error:
            return Row(source, number, {}, "duplicate_key", str(error))
        except RecursionError:
            return Row(source, number, {}, "invalid_json", "not valid JSON: nested too deeply")


class TextLines(LineFormat):
    """One document a line, as column `text`."""

    has_schema = True

    def parse_text(self, source: str, number: int, text: str) -> Row:
        """See `LineFormat.parse_text`."""
        return Row(source, number, {"text": text.rstrip("\r\n")})


class DuplicateKey(ValueError):
    """A JSON object that has one key twice: which value is meant nobody knows."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Object hook of the JSON decoder. Raises DuplicateKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DuplicateKey(f"the key '{twice}' stands twice in one object")
    return found


def object_row(source: str, number: int, value: Any) -> Row:
    """A decoded JSON value as a row."""
    if isinstance(value, dict):
        return Row(source, number, value)
    return Row(source, number, {}, "not_an_object", f"a row must be a JSON object, found {type(value).__name__}")
