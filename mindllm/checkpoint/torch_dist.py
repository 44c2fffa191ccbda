"""torch_dist (PyTorch Distributed Checkpoint) directories, tensor by tensor, without a model or a process group.

Layer parameters are stacked in this format: one key with a leading ``[num_layers]`` axis. They are written one chunk
per layer and read one layer at a time, so memory stays at one layer's tensor. megatron-core's
``dist_checkpointing.load`` reads what is written here at any layout, and whatever chunks it saved are read here.
"""

import io
import json
import math
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.utils import _create_file_view

from mindllm.checkpoint.metadata_pickle import read_metadata
from mindllm.errors import UserError

_DATA_NAME = "__0_0.distcp"
# What megatron-core 0.16.1 expects in metadata.json to choose its reader.
_BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


class TorchDistWriter:
    """Writes a torch_dist directory; it is readable only after :meth:`finish`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = (directory / _DATA_NAME).open("wb")
        self._tensors: dict[str, TensorStorageMetadata] = {}
        self._objects: dict[str, BytesStorageMetadata] = {}
        self._places: dict[MetadataIndex, _StorageInfo] = {}

    def write(self, key: str, tensor: torch.Tensor) -> None:
        """Write a whole tensor under ``key``."""
        self._write_chunk(key, tensor, (0,) * tensor.dim(), tuple(tensor.shape))

    def write_layer(self, key: str, tensor: torch.Tensor, layer: int, num_layers: int) -> None:
        """Write ``tensor`` ``[...]`` as layer ``layer`` of the stacked tensor ``[num_layers, ...]`` under ``key``."""
        self._write_chunk(key, tensor.unsqueeze(0), (layer,) + (0,) * tensor.dim(), (num_layers, *tensor.shape))

    def write_empty_object(self, key: str, layer: int, num_layers: int) -> None:
        """Write None as layer ``layer`` of the object ``key``, under megatron-core's name for one layer of it."""
        index = MetadataIndex(f"{key}/shard_{layer}_{num_layers}")
        begin = self._file.tell()
        self._save([None])
        self._objects[index.fqn] = BytesStorageMetadata()
        self._places[index] = _StorageInfo(_DATA_NAME, begin, self._file.tell() - begin)

    def _save(self, value: object) -> None:
        """Append ``value`` to the data file, in the encoding of DCP's file system writer."""
        try:
            torch.save(value, self._file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk, which torch masks as it closes its archive
                raise error.__context__ from None
            raise

    def _write_chunk(self, key: str, chunk: torch.Tensor, offset: tuple[int, ...], shape: tuple[int, ...]) -> None:
        """Append one chunk to the data file and note its place."""
        if chunk.untyped_storage().nbytes() != chunk.nbytes:
            chunk = chunk.clone()  # torch.save writes whole storages
        begin = self._file.tell()
        self._save(chunk)
        place = _StorageInfo(_DATA_NAME, begin, self._file.tell() - begin)

        entry = TensorStorageMetadata(TensorProperties(dtype=chunk.dtype), torch.Size(shape), [])
        entry = self._tensors.setdefault(key, entry)
        index = MetadataIndex(key, offset)
        if entry.properties.dtype != chunk.dtype or tuple(entry.size) != shape or index in self._places:
            raise ValueError(f"chunk {offset} of {key} is written twice or disagrees with the earlier ones")
        entry.chunks.append(ChunkStorageMetadata(torch.Size(offset), chunk.shape))
        self._places[index] = place

    def finish(self, iteration: int) -> None:
        """Write the descriptions without which nothing reads the data; ``iteration`` goes into ``common.pt``."""
        self._file.close()
        for key, entry in self._tensors.items():
            if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(entry.size):
                raise ValueError(f"{key} has layers that were never written")
        metadata = Metadata(
            state_dict_metadata={**self._tensors, **self._objects},
            storage_data=self._places,
            storage_meta=StorageMeta(),
            version="1.0.0",
        )
        with (self.directory / ".metadata").open("wb") as file:
            pickle.dump(metadata, file)
        torch.save({"iteration": iteration}, self.directory / "common.pt")
        (self.directory / "metadata.json").write_text(json.dumps(_BACKEND), encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class TorchDistReader:
    """Reads tensors of a torch_dist directory saved at any layout.

    The constructor reads ``.metadata`` through an allow-list and checks that every data file is long enough. Raises
    UserError naming the file otherwise.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metadata = read_metadata(directory)
        self._places: dict[MetadataIndex, _StorageInfo] = self._metadata.storage_data or {}
        self._file: io.BufferedReader | None = None
        self._check_files()
        entries = self._metadata.state_dict_metadata.items()
        self._tensors = {key: entry for key, entry in entries if isinstance(entry, TensorStorageMetadata)}

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

    def keys(self) -> set[str]:
        """Return the keys of all tensors, those of an optimizer included."""
        return set(self._tensors)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the full shape of ``key``, with the layer axis where there is one."""
        return tuple(self._tensors[key].size)

    def dtype(self, key: str) -> torch.dtype:
        """Return the dtype of ``key``."""
        return self._tensors[key].properties.dtype

    def read(self, key: str) -> torch.Tensor:
        """Return the whole tensor ``key``, put together from its chunks. Raises UserError if a part is missing."""
        entry = self._tensors[key]
        return self._assemble(key, (0,) * len(entry.size), tuple(entry.size))

    def read_layer(self, key: str, layer: int) -> torch.Tensor:
        """Return ``[...]``, layer ``layer`` of the stacked tensor ``key`` ``[num_layers, ...]``."""
        size = tuple(self._tensors[key].size)
        return self._assemble(key, (layer,) + (0,) * (len(size) - 1), (1, *size[1:]))[0]

    def _assemble(self, key: str, start: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
        """Return the block of ``key`` at ``start`` with ``shape``."""
        result: torch.Tensor | None = None
        covered = 0
        for chunk in self._overlapping(key, start, shape):
            data = self._read_chunk(key, chunk)
            if tuple(chunk.offsets) == start and tuple(chunk.sizes) == shape:
                return data
            if result is None:
                result = torch.empty(shape, dtype=data.dtype)
            source, target = _intersection(chunk, start, shape)
            result[target] = data[source]
            covered += result[target].numel()
        if result is None or covered != result.numel():
            raise UserError(f"{self.directory}: tensor {key} is incomplete, or parts of it overlap")
        return result

    def _overlapping(self, key: str, start: Sequence[int], shape: Sequence[int]) -> Iterator[ChunkStorageMetadata]:
        for chunk in self._tensors[key].chunks:
            axes = zip(chunk.offsets, chunk.sizes, start, shape, strict=True)
            if all(offset < begin + extent and begin < offset + size for offset, size, begin, extent in axes):
                yield chunk

    def _read_chunk(self, key: str, chunk: ChunkStorageMetadata) -> torch.Tensor:
        """Return one stored chunk, loaded without unpickling anything but a tensor."""
        place = self._places.get(MetadataIndex(key, chunk.offsets))
        if place is None or getattr(place, "transform_descriptors", None):
            raise UserError(f"{self.directory}: chunk {tuple(chunk.offsets)} of {key} is not stored plainly")
        path = self.directory / place.relative_path
        if self._file is None or self._file.name != str(path):
            self.close()
            self._file = path.open("rb")
        view = cast(IO[bytes], _create_file_view(self._file, place.offset, place.length))
        try:
            data = torch.load(view, "cpu", weights_only=True)
        except Exception as error:  # a damaged zip or a refused pickle; both are reported as what they are: bad input
            raise UserError(f"{path} is damaged at tensor {key}: {str(error).splitlines()[0]}") from None
        if not isinstance(data, torch.Tensor) or data.shape != chunk.sizes or data.dtype != self.dtype(key):
            raise UserError(f"{path}: tensor {key} is not stored as .metadata describes it")
        return data

    def close(self) -> None:
        """Close the data file that is open, if one is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _intersection(
    chunk: ChunkStorageMetadata, start: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where a chunk and a block overlap, as slices of the chunk and slices of the block."""
    source, target = [], []
    for offset, size, begin, extent in zip(chunk.offsets, chunk.sizes, start, shape, strict=True):
        low, high = max(offset, begin), min(offset + size, begin + extent)
        source.append(slice(low - offset, high - offset))
        target.append(slice(low - begin, high - begin))
    return tuple(source), tuple(target)
