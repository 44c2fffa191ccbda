"""Files of ``torch.save``, written and read a tensor at a time, without torch and without running any pickle's code.

Such a file is a zip archive of uncompressed entries: ``archive/data.pkl`` describes a value whose tensors refer to raw
entries ``archive/data/<number>``. ``torch.save`` needs all tensors at once; here an entry is written as its tensor
comes, and the description last. Checksums are left zero, as with torch's own ``set_crc32_options(False)``: computing
them takes longer than writing the data. Those that torch wrote are compared when an entry is read, which ``torch.load``
itself does not do: it takes damaged weights for good ones.
"""

import io
import math
import pickle
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, cast

import numpy as np

from mindllm.formats.arrays import DTYPES, Array, name_of, raw
from mindllm.formats.files import read_array, read_into, write_all
from mindllm.formats.pickles import Call, Global, Persistent, dumps

_NAME = "archive"
_ALIGNMENT = 64
_LOCAL, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")
_MAX32, _DATE_1980 = 0xFFFFFFFF, 0x21
_BLOCK_BYTES = 2**24
_STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}
_DTYPES = {storage: DTYPES[name] for name, storage in _STORAGES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in an archive: its entry, and its view of that entry in elements."""

    entry: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0
    stride: tuple[int, ...] | None = None

    @property
    def extent(self) -> int:
        """Return how many elements of the entry its view spans."""
        stride = self.stride or contiguous_stride(self.shape)
        last = sum((size - 1) * step for size, step in zip(self.shape, stride, strict=True))
        return last + 1 if math.prod(self.shape) else 0

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements lie one after the other."""
        return self.stride is None or self.stride == contiguous_stride(self.shape)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stride of a contiguous tensor, in elements."""
    return tuple(math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))


class ArchiveWriter:
    """Writes one archive at the current position of ``file``; it is readable only after :meth:`finish`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._start = file.tell()
        self._entries: list[tuple[bytes, int, int]] = []  # name, size, offset of the local header
        self._num_tensors = 0

    def add(self, tensor: Array) -> StoredTensor:
        """Write the data of a contiguous tensor; return what stands for it in the value given to :meth:`finish`."""
        stored, _ = self._begin_tensor(tensor.dtype, tensor.shape)
        write_all(self._file, raw(tensor))
        return stored

    def reserve(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[StoredTensor, int]:
        """Leave room for a contiguous tensor; return what stands for it, and where in the file its data goes."""
        stored, num_bytes = self._begin_tensor(dtype, shape)
        place = self._file.tell()
        self._file.seek(num_bytes, io.SEEK_CUR)
        return stored, place

    def _begin_tensor(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[StoredTensor, int]:
        """Begin the entry of a tensor; return what stands for it, and its size in bytes."""
        stored = StoredTensor(str(self._num_tensors), dtype, shape)
        self._num_tensors += 1
        num_bytes = math.prod(shape) * dtype.itemsize
        self._begin(f"data/{stored.entry}", num_bytes)
        return stored, num_bytes

    def finish(self, value: object) -> None:
        """Write the description of ``value``, in which :class:`StoredTensor` stand for tensors, and the directory."""
        self._write("data.pkl", dumps(_described(value)))
        self._write("byteorder", sys.byteorder.encode())
        self._write("version", b"3\n")
        begin = self._file.tell() - self._start
        directory = bytearray()
        for name, size, offset in self._entries:
            zip64 = struct.pack("<2H3Q", 1, 24, size, size, offset)
            sizes = (0, _MAX32, _MAX32, len(name), len(zip64), 0, 0, 0, 0, _MAX32)
            directory += _CENTRAL.pack(b"PK\1\2", 45, 45, 0, 0, 0, _DATE_1980, *sizes) + name + zip64
        count, length = len(self._entries), len(directory)
        directory += _END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, begin)
        directory += _LOCATOR.pack(b"PK\6\7", 0, begin + length, 1)
        directory += _END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, _MAX32, _MAX32, 0)
        write_all(self._file, memoryview(directory))

    def _write(self, name: str, data: bytes) -> None:
        """Write one entry."""
        self._begin(name, len(data))
        write_all(self._file, memoryview(data))

    def _begin(self, name: str, size: int) -> None:
        """Write what precedes the data of one entry, which then starts at a multiple of 64 bytes from the start."""
        raw = f"{_NAME}/{name}".encode()
        offset = self._file.tell() - self._start
        zip64 = struct.pack("<2H2Q", 1, 16, size, size)
        padding = -(offset + _LOCAL.size + len(raw) + len(zip64) + 4) % _ALIGNMENT
        extra = zip64 + struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        header = _LOCAL.pack(b"PK\3\4", 45, 0, 0, 0, _DATE_1980, 0, _MAX32, _MAX32, len(raw), len(extra))
        write_all(self._file, memoryview(header + raw + extra))
        self._entries.append((raw, size, offset))


def _described(value: Any) -> Any:
    """Return ``value`` with torch's way to rebuild a tensor in place of every :class:`StoredTensor`."""
    if isinstance(value, dict):
        return {key: _described(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_described(each) for each in value]
    if not isinstance(value, StoredTensor):
        return value
    storage = Global("torch", _STORAGES[name_of(value.dtype)])
    place = Persistent(("storage", storage, value.entry, "cpu", math.prod(value.shape)))
    hooks = Call(Global("collections", "OrderedDict"), ())
    arguments = (place, 0, value.shape, contiguous_stride(value.shape), False, hooks)
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)


class ArchiveReader:
    """Reads one archive that takes ``length`` bytes of ``file`` from ``start`` on.

    ``value`` is what was saved, with a :class:`StoredTensor` for every tensor; reading it raises ``ValueError`` or
    ``pickle.UnpicklingError`` for anything but tensors and plain values. The constructor raises ``ValueError`` for a
    damaged archive.
    """

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file = file
        view = cast(IO[bytes], _View(file, start, length))
        try:
            archive = zipfile.ZipFile(view)
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from None
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1 or any(info.compress_type for info in archive.infolist()):
            raise ValueError("it is not a file of torch.save")
        if any(info.header_offset < 0 for info in archive.infolist()):  # zipfile counts back from the end
            raise ValueError("bytes are missing from it")
        self._prefix = names[0].removesuffix("data.pkl")
        self._start = start
        self._infos = {info.filename: info for info in archive.infolist()}
        self._checked: set[str] = set()
        order = self._raw("byteorder") if self._prefix + "byteorder" in self._infos else b"little"
        if order.decode() != sys.byteorder:
            raise ValueError(f"it was saved on a {order.decode()}-endian machine")

    @cached_property
    def value(self) -> Any:
        """What was saved."""
        return _Unpickler(io.BytesIO(self._raw("data.pkl"))).load()

    def check(self) -> None:
        """Compare every entry with its checksum. Raises ValueError for a damaged one."""
        for name in self._infos:
            self._check_entry(name.removeprefix(self._prefix))

    def _check_entry(self, name: str) -> None:
        """Compare an entry with its checksum, if it has one, unless that was done before."""
        begin, size = self._place(name)
        wanted = self._infos[self._prefix + name].CRC
        if not wanted or name in self._checked:
            return
        self._checked.add(name)
        found = 0
        self._file.seek(begin)
        while size and (block := self._file.read(min(size, _BLOCK_BYTES))):
            found, size = zlib.crc32(block, found), size - len(block)
        if size or found != wanted:
            raise ValueError(f"its entry {name} does not have its checksum")

    def _place(self, name: str) -> tuple[int, int]:
        """Return where the data of an entry lies in the file, and its size."""
        info = self._infos.get(self._prefix + name)
        if info is None:
            raise ValueError(f"its entry {name} is missing")
        self._file.seek(self._start + info.header_offset)
        header = self._file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
            raise ValueError(f"its entry {name} is damaged")
        *_, name_length, extra_length = _LOCAL.unpack(header)
        return self._start + info.header_offset + _LOCAL.size + name_length + extra_length, info.file_size

    def _raw(self, name: str) -> bytes:
        self._check_entry(name)
        place, size = self._place(name)
        self._file.seek(place)
        return self._file.read(size)

    def read(self, tensor: StoredTensor) -> Array:
        """Return the tensor's data in a new buffer."""
        shape = tensor.shape if tensor.is_contiguous else (tensor.extent,)
        array = read_array(self._file, self._first_byte(tensor), tensor.dtype, shape)
        if tensor.is_contiguous:
            return array
        strides = [step * tensor.dtype.itemsize for step in tensor.stride or ()]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(array, tensor.shape, strides))

    def read_into(self, tensor: StoredTensor, arrays: Sequence[Array]) -> None:
        """Fill ``arrays`` with the tensor's rows, one after the other. Raises ValueError when it has another shape."""
        ends = np.cumsum([len(array) for array in arrays])
        shape = (int(ends[-1]), *arrays[0].shape[1:])
        if tensor.shape != shape:
            raise ValueError(f"it has shape {tensor.shape}, not {shape}")
        if tensor.is_contiguous and all(array.flags.c_contiguous for array in arrays):
            begin = self._first_byte(tensor)
            for array in arrays:
                read_into(self._file, begin, array)
                begin += array.nbytes
        else:
            for array, rows in zip(arrays, np.split(self.read(tensor), ends[:-1]), strict=True):
                array[...] = rows

    def _first_byte(self, tensor: StoredTensor) -> int:
        """Return where in the file its first element lies."""
        self._check_entry(f"data/{tensor.entry}")
        place, size = self._place(f"data/{tensor.entry}")
        width = tensor.dtype.itemsize
        if (tensor.offset + tensor.extent) * width > size:
            raise ValueError(f"its entry data/{tensor.entry} is too short")
        return place + tensor.offset * width


class _View(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        super().__init__()
        self._file, self._start, self._length, self._position = file, start, length, 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to ``offset`` and return the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read as much of the part as fits into ``buffer``."""
        self._file.seek(self._start + self._position)
        data = self._file.read(max(0, min(len(buffer), self._length - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Inert:
    """Takes the place of an object that says nothing about tensors, so that its class is never run."""

    def __new__(cls, *_: Any, **__: Any) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def append(self, value: Any) -> None:
        """Accept an item of a list-like object."""

    def __setitem__(self, key: Any, value: Any) -> None: ...


# What Megatron keeps beside the model: arguments, random states, fp8 statistics.
_INERT_MODULES = (
    "argparse",
    "pathlib",
    "megatron",
    "mindspeed",
    "numpy",
    "_codecs",
    "_io",
    "signal",
    "transformer_engine",
    "enum",
)


def _rebuild(storage: StoredTensor, offset: int, shape: Any, stride: Any, *_: Any) -> StoredTensor:
    """Stand in for ``torch._utils._rebuild_tensor_v2``."""
    return StoredTensor(storage.entry, storage.dtype, tuple(shape), offset, tuple(stride))


def _rebuild_parameter(data: StoredTensor, *_: Any) -> StoredTensor:
    """Stand in for ``torch._utils._rebuild_parameter`` and ``_rebuild_parameter_with_state``."""
    return data


class _Unpickler(pickle.Unpickler):
    """Loads tensors as :class:`StoredTensor`, and nothing that could run code."""

    def persistent_load(self, pid: Any) -> StoredTensor:
        """Return what stands for a storage."""
        kind, storage, entry, _, count = pid
        if kind != "storage" or not isinstance(storage, np.dtype):
            raise pickle.UnpicklingError(f"it refers to a {kind}, which is not allowed there")
        return StoredTensor(str(entry), storage, (int(count),))

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or function; anything unknown ends the load before it could be called."""
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return _rebuild
        if module == "torch._utils" and name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            return _rebuild_parameter
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("torch", "device"):
            return _Inert
        if module.split(".")[0] in _INERT_MODULES:
            return _Inert
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed there")
