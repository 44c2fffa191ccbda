"""Streaming over safetensors directories: one tensor in memory at a time, nothing mapped.

The format: 8 bytes (little-endian length of the header), a JSON header ``{name: {dtype, shape, data_offsets}}``, then
the raw data. Offsets count from the end of the header.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.errors import UserError, naming_file
from mindllm.formats.arrays import DTYPES, Array, raw
from mindllm.formats.files import Closing, LastFile, read_into, write_all

SINGLE_NAME = "model.safetensors"
ADAPTER_NAME = "adapter_model.safetensors"
_INDEX_SUFFIX = ".index.json"
INDEX_NAME = SINGLE_NAME + _INDEX_SUFFIX
_MAX_LISTED = 8
_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {
    "F64": DTYPES["float64"],
    "F32": DTYPES["float32"],
    "F16": DTYPES["float16"],
    "BF16": DTYPES["bfloat16"],
    "I64": DTYPES["int64"],
    "I32": DTYPES["int32"],
    "I16": DTYPES["int16"],
    "I8": DTYPES["int8"],
    "U8": DTYPES["uint8"],
    "BOOL": DTYPES["bool"],
    "F8_E4M3": DTYPES["float8_e4m3fn"],
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies; ``offset`` and ``num_bytes`` are in bytes from the start of ``path``."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that will be written."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsReader(Closing):
    """All tensors that transformers would load from a directory: see :func:`weight_files`.

    A tensor in several of the files is the last one's, also as in transformers; ``notes`` are sentences about that, and
    about safetensors files beside them that are not read. The constructor reads and validates the headers. Raises
    UserError naming the file for a missing, truncated or malformed one.
    """

    def __init__(self, directory: str | Path, single_name: str = SINGLE_NAME, explicit: str | None = None) -> None:
        self.directory = Path(directory)
        self._file = LastFile()
        self.infos: dict[str, TensorInfo] = {}
        self.notes: list[str] = []
        files = weight_files(self.directory, single_name, explicit)
        for path in files:
            infos = read_header(path)
            twice = sorted(infos.keys() & self.infos.keys())
            if twice:
                others = sorted({self.infos[name].path.name for name in twice})
                self.notes.append(
                    f"{len(twice)} tensors of {', '.join(others)} are in {path.name} too, e.g. {twice[0]}; the latter "
                    "is read, as transformers does"
                )
            self.infos |= infos
        adapter = self.directory / ADAPTER_NAME  # of which whoever reads it says more
        unread = sorted(set(self.directory.glob("*.safetensors")) - {*files, adapter})
        if unread:
            names = ", ".join(path.name for path in unread[:_MAX_LISTED]) + (", ..." if unread[_MAX_LISTED:] else "")
            verb = "is" if len(unread) == 1 else "are"
            self.notes.append(f"{names} {verb} not read: transformers loads {_described(files)}")

    def read(self, name: str) -> Array:
        """Return the tensor ``name`` in a new buffer of exactly its size. Raises KeyError for an unknown name."""
        info = self.infos[name]
        array = np.empty(info.shape, info.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, array: Array) -> None:
        """Fill a contiguous ``array`` of its size with the tensor ``name``."""
        info = self.infos[name]
        try:
            read_into(self._file.open(info.path), info.offset, array)
        except EOFError:
            raise UserError(f"{info.path} ends inside tensor {name}") from None

    def close(self) -> None:
        """Close the shard that is open, if one is."""
        self._file.close()


def weight_files(directory: Path, single_name: str = SINGLE_NAME, explicit: str | None = None) -> list[Path]:
    """Return the files that transformers loads a model from, in the order in which it reads them.

    ``explicit``, which ``config.json`` may give as ``transformers_weights``, comes before ``single_name``, and that
    before its index (``transformers.modeling_utils._get_resolved_checkpoint_files``, 5.24). An index only says which
    files there are: where its entries put a tensor does not matter. Raises UserError when there is no such file.
    """
    index_name = single_name + _INDEX_SUFFIX
    for name in (single_name, index_name) if explicit is None else (explicit,):
        path = directory / name
        if not path.is_file():
            continue
        if not name.endswith(_INDEX_SUFFIX):
            return [path]
        return [_shard(path, shard) for shard in sorted(set(_read_weight_map(path).values()))]
    if explicit is not None:
        raise UserError(f"{directory} has no {explicit}, which transformers_weights in its config.json names")
    raise UserError(f"{directory} has neither {single_name} nor {index_name}{_other_formats(directory)}")


def _shard(index_path: Path, name: str) -> Path:
    path = index_path.parent / name
    if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
        raise UserError(f"{index_path}: shard {name} is not in {index_path.parent}")
    return path


def _described(files: Sequence[Path]) -> str:
    return files[0].name if len(files) == 1 else f"the {len(files)} files that the index names"


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors that one safetensors file holds; the data must fill the file without gap or overlap.

    Raises UserError naming the file when the header is malformed or the file has another length than it says.
    """
    size = path.stat().st_size
    with naming_file(path), path.open("rb") as file:
        prefix = file.read(8)
        header_size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= header_size <= min(_MAX_HEADER_BYTES, size - 8):
            raise UserError(f"{path} is truncated or not a safetensors file ({size} bytes)")
        raw = file.read(header_size)
    try:
        header = json.loads(raw, object_pairs_hook=lambda pairs: _unique(pairs, path))
        header.pop("__metadata__", None)
        start = 8 + header_size
        infos = {name: _tensor_info(path, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} has a malformed safetensors header: {error!r}") from None
    end = 8 + header_size
    for name, info in sorted(infos.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if info.offset != end or info.num_bytes != math.prod(info.shape) * info.dtype.itemsize:
            raise UserError(f"{path}: the place of tensor {name} does not follow from its shape and its neighbours")
        end = info.offset + info.num_bytes
    if end != size:
        problem = "is truncated" if size < end else "has bytes after the last tensor"
        raise UserError(f"{path} {problem}: {size} bytes instead of {end}")
    return infos


def _tensor_info(path: Path, start: int, entry: Mapping[str, Any]) -> TensorInfo:
    begin, end = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    if entry["dtype"] not in _DTYPES:
        raise UserError(f"{path}: dtype {entry['dtype']} is not supported; supported are {', '.join(_DTYPES)}")
    return TensorInfo(path, _DTYPES[entry["dtype"]], shape, start + begin, end - begin)


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    """Build a JSON object, refusing repeated names, which the json module would silently merge."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise UserError(f"{path}: {name} appears twice")
        result[name] = value
    return result


def _read_weight_map(index_path: Path) -> dict[str, str]:
    try:
        index = json.loads(index_path.read_text("utf-8"), object_pairs_hook=lambda pairs: _unique(pairs, index_path))
        weight_map = {str(name): str(shard) for name, shard in index["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index_path} is not a safetensors index: {error!r}") from None
    if not weight_map:
        raise UserError(f"{index_path} lists no tensor")
    return weight_map


def _other_formats(directory: Path) -> str:
    """Say what to do when the weights are there in a format, or under a name, that is never read."""
    if any(directory.glob("pytorch_model*.bin")) or (directory / "adapter_model.bin").is_file():
        return "; pickled .bin weights are not read, save them as safetensors first"
    others = sorted(path.name for path in directory.glob("*.safetensors*"))
    return f"; by itself transformers does not load {others[0]} either" if others else ""


class SafetensorsWriter:
    """Writes tensors, in any order, into shards whose layout is fixed beforehand.

    ``tensors`` are in the order in which they fill the shards; a shard holds at most ``max_shard_bytes`` unless one
    tensor alone is larger. Files are named as Hugging Face names them.
    """

    def __init__(self, directory: Path, tensors: Sequence[PlannedTensor], max_shard_bytes: int) -> None:
        self.directory = directory
        self._infos: dict[str, TensorInfo] = {}
        shards = _plan_shards(tensors, max_shard_bytes)
        for number, shard in enumerate(shards, start=1):
            name = SINGLE_NAME if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            self._infos.update(_write_header(directory / name, shard))
        self.written: set[str] = set()
        self._file = LastFile("r+b")
        self._is_sharded = len(shards) > 1

    def write(self, name: str, tensor: Array) -> None:
        """Write one contiguous tensor; its dtype and shape must be the planned ones, and it is written once."""
        info = self._infos[name]
        if name in self.written or tensor.dtype != info.dtype or tensor.shape != info.shape:
            raise ValueError(f"{name} was not planned as {tensor.dtype} {tensor.shape}, or is already written")
        file = self._file.open(info.path)
        file.seek(info.offset)
        write_all(file, raw(tensor))
        self.written.add(name)

    def close(self) -> None:
        """Close the shard that is open, if one is."""
        self._file.close()

    def finish(self) -> None:
        """Write the index when there are several shards. Raises ValueError if a planned tensor is missing."""
        self.close()
        pending = self._infos.keys() - self.written
        if pending:
            raise ValueError(f"tensors never written: {', '.join(sorted(pending))}")
        if self._is_sharded:
            total = sum(info.num_bytes for info in self._infos.values())
            weight_map = {name: info.path.name for name, info in sorted(self._infos.items())}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (self.directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _plan_shards(tensors: Sequence[PlannedTensor], max_shard_bytes: int) -> list[list[PlannedTensor]]:
    """Fill shards in order, starting a new one where the next tensor would exceed the limit."""
    shards: list[list[PlannedTensor]] = [[]]
    used = 0
    for tensor in tensors:
        if shards[-1] and used + tensor.num_bytes > max_shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += tensor.num_bytes
    return shards


def _write_header(path: Path, shard: Sequence[PlannedTensor]) -> dict[str, TensorInfo]:
    """Create ``path`` with its header and full length, and return where each tensor goes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    end = 0
    # Wide types first, so that every tensor starts at a multiple of its element size.
    for tensor in sorted(shard, key=lambda tensor: -tensor.dtype.itemsize):
        begins[tensor.name], end = end, end + tensor.num_bytes
        offsets = [begins[tensor.name], end]
        header[tensor.name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    start = 8 + len(raw)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(start + end)
    return {t.name: TensorInfo(path, t.dtype, t.shape, start + begins[t.name], t.num_bytes) for t in shard}
