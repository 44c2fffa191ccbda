"""Writing pickles that name torch's classes and functions, without importing torch.

Python's own pickler only names what it can import. The few kinds of values here need a dozen opcodes.
"""

import struct
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Global:
    """A class, function or constant, by the name under which the reader imports it."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """What the reader gets by calling ``function`` with ``arguments``."""

    function: Global
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Instance:
    """An object of the class ``kind`` made without arguments, then given ``state``."""

    kind: Global
    state: Any


@dataclass(frozen=True)
class Persistent:
    """What the reader finds outside the pickle by ``identifier``."""

    identifier: tuple[Any, ...]


def dumps(value: Any) -> bytes:
    """Return the pickle (protocol 2) of plain values, containers and the classes above. Raises TypeError for others."""
    encoder = _Encoder()
    encoder.add(value)
    return b"\x80\x02" + bytes(encoder.out) + b"."


class _Encoder:
    def __init__(self) -> None:
        self.out = bytearray()
        self._known: dict[Global, int] = {}

    def add(self, value: Any) -> None:
        """Append the opcodes that leave ``value`` on the reader's stack."""
        if value is None or isinstance(value, bool):
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._add_int(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            raw = value.encode()
            self.out += b"X" + struct.pack("<I", len(raw)) + raw
        elif isinstance(value, tuple | list | dict):
            self._add_container(value)
        else:
            self._add_object(value)

    def _add_int(self, value: int) -> None:
        raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        self.out += b"\x8a" + bytes([len(raw)]) + raw

    def _add_container(self, value: tuple[Any, ...] | list[Any] | dict[Any, Any]) -> None:
        if isinstance(value, tuple):
            begin, items, end = b"(", value, b"t"
        elif isinstance(value, list):
            begin, items, end = b"](", tuple(value), b"e"
        else:
            begin, items, end = b"}(", tuple(part for pair in value.items() for part in pair), b"u"
        self.out += begin
        for item in items:
            self.add(item)
        self.out += end

    def _add_object(self, value: Any) -> None:
        match value:
            case Global():
                self._add_global(value)
            case Call():
                self._add_parts(value.function, value.arguments, end=b"R")
            case Instance():
                self._add_parts(value.kind, (), end=b"\x81")
                self._add_parts(value.state, end=b"b")
            case Persistent():
                self._add_parts(value.identifier, end=b"Q")
            case _:
                raise TypeError(f"a {type(value).__name__} cannot be written")

    def _add_parts(self, *parts: Any, end: bytes) -> None:
        for part in parts:
            self.add(part)
        self.out += end

    def _add_global(self, value: Global) -> None:
        """Name a global once; later refer to the first time."""
        if value in self._known:
            self.out += b"j" + struct.pack("<I", self._known[value])
            return
        number = self._known.setdefault(value, len(self._known))
        self.out += f"c{value.module}\n{value.name}\n".encode() + b"r" + struct.pack("<I", number)
