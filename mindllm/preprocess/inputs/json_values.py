"""json files: a list of objects, one object, or objects one after the other; streamed, not read whole."""

import codecs
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from mindllm.errors import UserError
from mindllm.preprocess.inputs.base import Format, Mark, Scan, open_bytes
from mindllm.preprocess.inputs.json_lines import DuplicateKey, object_row, unique_keys
from mindllm.preprocess.inputs.rows import Row

_CHUNK = 1 << 20  # bytes
_SPACE = re.compile(r"[\s]*")


class JsonValues(Format):
    """Values of a json file; those of a list at the top count one by one."""

    def scan(self, path: Path) -> Scan:
        """See `Format.scan`."""
        return Scan(sum(1 for _ in _values(path)))

    def read(self, path: Path, skip: int, marks: tuple[Mark, ...] = ()) -> Iterator[Row]:
        """See `Format.read`."""
        for number, value in islice(enumerate(_values(path), 1), skip, None):
            if isinstance(value, DuplicateKey):
                yield Row(str(path), number, {}, "duplicate_key", str(value))
            else:
                yield object_row(str(path), number, value)


def _values(path: Path) -> Iterator[Any]:
    with open_bytes(path) as file:
        text = _Text(path, file)
        while (character := text.peek()) != "":
            if character == "[":
                yield from _items(text)
            else:
                yield text.value()


def _items(text: "_Text") -> Iterator[Any]:
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        yield text.value()
        if text.peek() != ",":
            text.take("]")
            return
        text.take(",")


class _Text:
    """The file's text from the current place on, as much of it as is needed."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
        self._buffer, self._position, self._lines = "", 0, 1
        self._bytes, self._is_whole = 0, False

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            found = _SPACE.match(self._buffer, self._position)
            self._advance(found.end() if found else self._position)
            if self._position < len(self._buffer) or not self._grow(_CHUNK):
                return self._buffer[self._position : self._position + 1]

    def take(self, character: str) -> None:
        """Go past a character that must be next."""
        found = self.peek()
        if found != character:
            self._fail(f"expected '{character}', found {repr(found) if found else 'the end of the file'}", 0)
        self._advance(self._position + 1)

    def value(self) -> Any:
        """The next value; a DuplicateKey stands for an object that has one."""
        self.peek()
        size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
            except DuplicateKey as error:
                value, end = error, self._end_of_value()
            except json.JSONDecodeError as error:
                # What ends in the middle of the buffer is wrong, what ends with it may go on.
                if self._grow(size):
                    size *= 2
                    continue
                self._fail(error.msg, error.pos - self._position)
            if end == len(self._buffer) and self._grow(size):
                continue  # a number may go on
            self._advance(end)
            return value

    def _end_of_value(self) -> int:
        return int(json.JSONDecoder().raw_decode(self._buffer, self._position)[1])

    def _grow(self, size: int) -> bool:
        """Read on; False at the end of the file."""
        if self._is_whole:
            return False
        data = self._file.read(size)
        self._is_whole = not data
        try:
            more = self._decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}: not UTF-8 at byte {self._bytes + error.start}") from error
        self._bytes += len(data)
        self._buffer = self._buffer[self._position :] + more
        self._position = 0
        return True

    def _advance(self, position: int) -> None:
        self._lines += self._buffer.count("\n", self._position, position)
        self._position = position

    def _fail(self, message: str, ahead: int) -> None:
        place = self._position + max(ahead, 0)
        line = self._lines + self._buffer.count("\n", self._position, place)
        column = place - self._buffer.rfind("\n", 0, place)
        raise UserError(f"{self._path}:{line}: not valid JSON: {message} at column {column}")
