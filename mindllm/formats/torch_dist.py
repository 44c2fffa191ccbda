"""torch_dist (PyTorch Distributed Checkpoint) directories, tensor by tensor, without a model or a process group.

Parameters of layers and experts are stacked in this format: one key with leading ``[num_layers, num_experts]`` axes.
They are written and read a slice at a time, so memory stays at one layer's tensor. megatron-core's
``dist_checkpointing.load`` reads what is written here at any layout, and whatever chunks it saved are read here.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.errors import UserError, in_one_line
from mindllm.formats.arrays import Array
from mindllm.formats.dist_metadata import (
    Chunk,
    Index,
    Metadata,
    ObjectEntry,
    Properties,
    Stored,
    TensorEntry,
    read_metadata,
    write_metadata,
)
from mindllm.formats.files import Closing, LastFile, write_all
from mindllm.formats.torch_archive import ArchiveReader, ArchiveWriter, StoredTensor

OPTIMIZER_PREFIXES = ("optimizer.", "chained_")  # of keys that are not a model's
# What megatron-core 0.16.1 expects in metadata.json to choose its reader.
_BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


@dataclass
class Written:
    """What a writer has put into its data file, for the metadata."""

    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    objects: dict[str, ObjectEntry] = field(default_factory=dict)
    places: dict[Index, Stored] = field(default_factory=dict)

    def add(self, other: "Written") -> None:
        """Add what another writer has put into another file. Raises ValueError if something is in both."""
        twice = self.places.keys() & other.places.keys()
        if twice:
            raise ValueError(f"written twice: {sorted(index.fqn for index in twice)[:3]}")
        for key, entry in other.tensors.items():
            self.tensors.setdefault(key, TensorEntry(entry.properties, entry.size, [])).chunks += entry.chunks
        self.objects |= other.objects
        self.places |= other.places


class TorchDistWriter(Closing):
    """Writes a torch_dist directory; it is readable only after :meth:`finish`.

    Several writers may fill one directory, each the data file of its ``part``; one of them finishes it after adding
    what the others have ``written``.
    """

    def __init__(self, directory: Path, part: int = 0) -> None:
        self.directory = directory
        self.written = Written()
        self._name = f"__{part}_0.distcp"
        self._file = (directory / self._name).open("wb", buffering=0)

    def write(self, key: str, tensor: Array) -> None:
        """Write a whole tensor under ``key``."""
        self.write_slice(key, tensor, (), ())

    def write_layer(self, key: str, tensor: Array, layer: int, num_layers: int) -> None:
        """Write ``tensor`` ``[...]`` as layer ``layer`` of the stacked tensor ``[num_layers, ...]`` under ``key``."""
        self.write_slice(key, tensor, (layer,), (num_layers,))

    def write_slice(self, key: str, tensor: Array, index: tuple[int, ...], extent: tuple[int, ...]) -> None:
        """Write ``tensor`` ``[...]`` as slice ``index`` of the stacked tensor ``[*extent, ...]`` under ``key``."""
        chunk = tensor.reshape((1,) * len(index) + tensor.shape)
        self.write_chunk(key, chunk, index + (0,) * tensor.ndim, extent + tensor.shape)

    def write_empty_object(self, key: str, index: tuple[int, ...], extent: tuple[int, ...]) -> None:
        """Write None as slice ``index`` of the object ``key``, under megatron-core's name for one slice of it."""
        offset, shape = (".".join(map(str, numbers)) for numbers in (index or (0,), extent or (1,)))
        begin = self._file.tell()
        ArchiveWriter(self._file).finish([None])
        self._note_object(f"{key}/shard_{offset}_{shape}", begin)

    def write_object(self, key: str, content: bytes) -> None:
        """Write an object that is already encoded."""
        begin = self._file.tell()
        write_all(self._file, memoryview(content))
        self._note_object(key, begin)

    def _note_object(self, key: str, begin: int) -> None:
        self.written.objects[key] = ObjectEntry()
        self.written.places[Index(key)] = Stored(self._name, begin, self._file.tell() - begin)

    def write_chunk(self, key: str, chunk: Array, offset: tuple[int, ...], shape: tuple[int, ...]) -> None:
        """Append the block at ``offset`` of the tensor ``key`` of ``shape``, and note its place."""
        begin = self._file.tell()
        archive = ArchiveWriter(self._file)
        archive.finish(archive.add(np.asarray(chunk, order="C")))
        place = Stored(self._name, begin, self._file.tell() - begin)

        entry = TensorEntry(Properties(chunk.dtype), shape, [])
        entry = self.written.tensors.setdefault(key, entry)
        index = Index(key, offset)
        if entry.properties.dtype != chunk.dtype or tuple(entry.size) != shape or index in self.written.places:
            raise ValueError(f"chunk {offset} of {key} is written twice or disagrees with the earlier ones")
        entry.chunks.append(Chunk(offset, chunk.shape))
        self.written.places[index] = place

    def close(self) -> None:
        """Close the data file."""
        self._file.close()

    def finish(self, iteration: int, common: bytes | None = None) -> None:
        """Write the descriptions without which nothing reads the data.

        ``common`` is the content of ``common.pt``; by default it holds ``iteration``.
        """
        self.close()
        for key, entry in self.written.tensors.items():
            if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(entry.size):
                raise ValueError(f"{key} has parts that were never written")
        write_metadata(Metadata({**self.written.tensors, **self.written.objects}, self.written.places), self.directory)
        with (self.directory / "common.pt").open("wb") as file:
            if common is None:
                ArchiveWriter(file).finish({"iteration": iteration})
            else:
                file.write(common)
        (self.directory / "metadata.json").write_text(json.dumps(_BACKEND), encoding="utf-8")


class TorchDistReader(Closing):
    """Reads tensors of a torch_dist directory saved at any layout.

    The constructor reads ``.metadata`` through an allow-list and checks that every data file is long enough. Raises
    UserError naming the file otherwise.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metadata = read_metadata(directory)
        self._places: dict[Index, Stored] = self._metadata.storage_data or {}
        self._file = LastFile()
        self._check_files()
        entries = self._metadata.state_dict_metadata.items()
        self._tensors = {key: entry for key, entry in entries if isinstance(entry, TensorEntry)}
        self._objects = {key for key, entry in entries if isinstance(entry, ObjectEntry)}

    def _check_files(self) -> None:
        lengths: dict[str, int] = {}
        for place in self._places.values():
            lengths[place.relative_path] = max(lengths.get(place.relative_path, 0), place.offset + place.length)
        for name, length in sorted(lengths.items()):
            path = self.directory / name
            if Path(name).name != name or not path.is_file():
                raise UserError(f"{self.directory}: data file {name} is missing")
            if path.stat().st_size < length:
                raise UserError(f"{path} is truncated: {path.stat().st_size} bytes instead of {length}")

    def check_loadable(self) -> None:
        """Refuse what megatron-core's loader fails on beside the tensors, without reading these.

        Raises UserError naming the file.
        """
        for name in ("common.pt", "metadata.json"):
            if not (self.directory / name).is_file():
                raise UserError(f"{self.directory} is not a complete torch_dist checkpoint, {name} is missing")
        path = self.directory / "metadata.json"
        try:
            backend = json.loads(path.read_text(encoding="utf-8"))["sharded_backend"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged: {error}") from None
        if backend != _BACKEND["sharded_backend"]:
            raise UserError(f"{path}: sharded_backend is {backend!r}; only '{_BACKEND['sharded_backend']}' is read")
        path = self.directory / "common.pt"
        with _naming_damage(path):
            ArchiveReader(self._file.open(path), 0, path.stat().st_size).check()

    def check_tensors(self, keys: Iterable[str], part: int = 0, num_parts: int = 1) -> None:
        """Compare what is stored of ``keys`` with its checksums, where the writer left some, as training does.

        Only every ``num_parts``-th block is read, from block ``part`` on. Raises UserError naming the file.
        """
        blocks = [(key, chunk) for key in sorted(keys) for chunk in self._tensors[key].chunks]
        for key, chunk in blocks[part::num_parts]:
            path, place = self._where(key, chunk)
            with _naming_damage(path, key):
                ArchiveReader(self._file.open(path), place.offset, place.length).check()

    def keys(self) -> set[str]:
        """Return the keys of all tensors, those of an optimizer included."""
        return set(self._tensors)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the full shape of ``key``, with the layer axis where there is one."""
        return tuple(self._tensors[key].size)

    def dtype(self, key: str) -> np.dtype[Any]:
        """Return the dtype of ``key``."""
        return self._tensors[key].properties.dtype

    def read(self, key: str) -> Array:
        """Return the whole tensor ``key``, put together from its chunks. Raises UserError if a part is missing."""
        entry = self._tensors[key]
        return self._assemble(key, (0,) * len(entry.size), tuple(entry.size))

    def read_layer(self, key: str, layer: int) -> Array:
        """Return ``[...]``, layer ``layer`` of the stacked tensor ``key`` ``[num_layers, ...]``."""
        return self.read_slice(key, (layer,))

    def read_slice(self, key: str, index: tuple[int, ...]) -> Array:
        """Return ``[...]``, slice ``index`` of the stacked tensor ``key`` ``[*extent, ...]``."""
        shape = tuple(self._tensors[key].size)[len(index) :]
        block = self._assemble(key, index + (0,) * len(shape), (1,) * len(index) + shape)
        return block.reshape(shape)

    def objects(self) -> set[str]:
        """Return the keys of everything that is not a tensor."""
        return set(self._objects)

    def read_object(self, key: str) -> bytes:
        """Return an object as it is encoded."""
        place = self._places[Index(key)]
        file = self._file.open(self.directory / place.relative_path)
        file.seek(place.offset)
        return file.read(place.length)

    def chunks(self, key: str) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yield the stored blocks of ``key`` with their offsets."""
        for chunk in self._tensors[key].chunks:
            yield tuple(chunk.offsets), self._read_chunk(key, chunk)

    def _assemble(self, key: str, start: tuple[int, ...], shape: tuple[int, ...]) -> Array:
        """Return the block of ``key`` at ``start`` with ``shape``."""
        result: Array | None = None
        covered = 0
        for chunk in self._overlapping(key, start, shape):
            data = self._read_chunk(key, chunk)
            if tuple(chunk.offsets) == start and tuple(chunk.sizes) == shape:
                return data
            if result is None:
                result = np.empty(shape, data.dtype)
            source, target = _intersection(chunk, start, shape)
            result[target] = data[source]
            covered += result[target].size
        if result is None or covered != result.size:
            raise UserError(f"{self.directory}: tensor {key} is incomplete, or parts of it overlap")
        return result

    def _overlapping(self, key: str, start: Sequence[int], shape: Sequence[int]) -> Iterator[Chunk]:
        for chunk in self._tensors[key].chunks:
            axes = zip(chunk.offsets, chunk.sizes, start, shape, strict=True)
            if all(offset < begin + extent and begin < offset + size for offset, size, begin, extent in axes):
                yield chunk

    def _read_chunk(self, key: str, chunk: Chunk) -> Array:
        """Return one stored chunk, loaded without unpickling anything but a tensor."""
        path, place = self._where(key, chunk)
        with _naming_damage(path, key):
            archive = ArchiveReader(self._file.open(path), place.offset, place.length)
            data = archive.read(archive.value) if isinstance(archive.value, StoredTensor) else None
        if data is None or data.shape != tuple(chunk.sizes) or data.dtype != self.dtype(key):
            raise UserError(f"{path}: tensor {key} is not stored as .metadata describes it")
        return data

    def _where(self, key: str, chunk: Chunk) -> tuple[Path, Stored]:
        """Return the file of a stored chunk, and its place in it."""
        place = self._places.get(Index(key, chunk.offsets))
        if place is None or getattr(place, "transform_descriptors", None):
            raise UserError(f"{self.directory}: chunk {tuple(chunk.offsets)} of {key} is not stored plainly")
        return self.directory / place.relative_path, place

    def close(self) -> None:
        """Close the data file that is open, if one is."""
        self._file.close()


@contextmanager
def _naming_damage(path: Path, key: str | None = None) -> Iterator[None]:
    """Report what the block raises as damage of ``path``: a broken zip and a refused pickle raise nearly anything."""
    try:
        yield
    except Exception as error:
        where = "" if key is None else f" at tensor {key}"
        raise UserError(f"{path} is damaged{where}: {in_one_line(error)}") from None


def _intersection(
    chunk: Chunk, start: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where a chunk and a block overlap, as slices of the chunk and slices of the block."""
    source, target = [], []
    for offset, size, begin, extent in zip(chunk.offsets, chunk.sizes, start, shape, strict=True):
        low, high = max(offset, begin), min(offset + size, begin + extent)
        source.append(slice(low - offset, high - offset))
        target.append(slice(low - begin, high - begin))
    return tuple(source), tuple(target)
