"""The ``.metadata`` pickle of a torch_dist checkpoint, read without letting it run code, and written without torch.

PyTorch's own reader unpickles the file with the full pickle machine, so a checkpoint from somebody else could execute
anything. Here only the classes that such a file really holds are allowed, and ours take their place.
"""

import pickle
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Any

import numpy as np

from mindllm.errors import UserError
from mindllm.formats.arrays import DTYPES, name_of
from mindllm.formats.pickles import Call, Global, Instance, dumps

_METADATA, _FILESYSTEM = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"


@dataclass
class Chunk:
    """A stored block of a tensor: where it begins, and its shape."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass
class Properties:
    """What a tensor is besides its shape."""

    dtype: np.dtype[Any]

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.dtype,)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = state[0]


@dataclass
class TensorEntry:
    """A tensor, and the blocks in which it is stored."""

    properties: Properties
    size: tuple[int, ...]
    chunks: list[Chunk]


@dataclass
class ObjectEntry:
    """Something that is not a tensor."""


@dataclass(frozen=True)
class Index:
    """Names an object, or the block of a tensor at ``offset``; ``index`` is a hint of PyTorch's that says nothing."""

    fqn: str
    offset: tuple[int, ...] | None = None
    index: int | None = field(default=None, compare=False)


@dataclass
class Stored:
    """Where something lies: ``length`` bytes from ``offset`` on in a file of the directory."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: Any = None


@dataclass
class Metadata:
    """All that a checkpoint holds, and where it lies."""

    state_dict_metadata: dict[str, TensorEntry | ObjectEntry]
    storage_data: dict[Index, Stored]


class _Other:
    """Takes the place of what says nothing about the tensors."""

    def __new__(cls, *_: Any) -> "_Other":
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


_OURS: dict[tuple[str, str], Any] = {
    (_METADATA, "Metadata"): Metadata,
    (_METADATA, "TensorStorageMetadata"): TensorEntry,
    (_METADATA, "BytesStorageMetadata"): ObjectEntry,
    (_METADATA, "ChunkStorageMetadata"): Chunk,
    (_METADATA, "TensorProperties"): Properties,
    (_METADATA, "MetadataIndex"): Index,
    (_FILESYSTEM, "_StorageInfo"): Stored,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): dict,
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
    **{(module, name): PosixPath for module in ("pathlib", "pathlib._local") for name in ("Path", "PosixPath")},
}
_OTHERS = {
    *((_METADATA, name) for name in ("StorageMeta", "_MEM_FORMAT_ENCODING")),
    *(("torch.distributed.checkpoint.planner", name) for name in ("SavePlan", "TensorWriteData", "WriteItem")),
    *((_FILESYSTEM, "_StoragePrefix"), ("torch.distributed.checkpoint.planner", "WriteItemType")),
    *(("torch", "device"), ("torch.serialization", "_get_layout")),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for an allowed class; anything else ends the load before it could be called."""
        if (module, name) in _OURS:
            return _OURS[module, name]
        if (module, name) in _OTHERS:
            return _Other
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed there")


def read_metadata(iteration_dir: str | Path) -> Metadata:
    """Return the tensor list of the torch_dist checkpoint in ``iteration_dir``.

    Raises UserError when ``.metadata`` is missing, damaged, or refers to anything but torch's own metadata classes.
    """
    path = Path(iteration_dir) / ".metadata"
    if not path.is_file():
        raise UserError(f"{iteration_dir} has no .metadata file; it is not a complete torch_dist checkpoint")
    try:
        with path.open("rb") as file:
            metadata = _Unpickler(file).load()
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise UserError(f"{path} is refused: {error}") from None
    if not isinstance(metadata, Metadata):
        raise UserError(f"{path} is refused: it holds a {type(metadata).__name__}, not checkpoint metadata")
    return metadata


def write_metadata(metadata: Metadata, iteration_dir: Path) -> None:
    """Write ``.metadata`` as PyTorch writes it."""
    entries = {key: _entry(entry) for key, entry in metadata.state_dict_metadata.items()}
    places = {
        _of(_METADATA, "MetadataIndex", fqn=index.fqn, index=None, offset=_size(index.offset)): _of(
            _FILESYSTEM, "_StorageInfo", relative_path=place.relative_path, offset=place.offset, length=place.length
        )
        for index, place in metadata.storage_data.items()
    }
    storage = _of(_METADATA, "StorageMeta", checkpoint_id=None, save_id=None, load_id=None, modules=[])
    value = _of(
        _METADATA,
        "Metadata",
        state_dict_metadata=entries,
        planner_data=None,
        storage_data=places,
        storage_meta=storage,
        version="1.0.0",
    )
    (iteration_dir / ".metadata").write_bytes(dumps(value))


def _entry(entry: TensorEntry | ObjectEntry) -> Instance:
    if isinstance(entry, ObjectEntry):
        return _of(_METADATA, "BytesStorageMetadata")
    layout = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = Call(Global(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    dtype = Global("torch", name_of(entry.properties.dtype))
    properties = Instance(Global(_METADATA, "TensorProperties"), (dtype, layout, False, contiguous, False))
    chunks = [
        _of(_METADATA, "ChunkStorageMetadata", offsets=_size(chunk.offsets), sizes=_size(chunk.sizes))
        for chunk in entry.chunks
    ]
    return _of(_METADATA, "TensorStorageMetadata", properties=properties, size=_size(entry.size), chunks=chunks)


def _of(module: str, name: str, **state: Any) -> Instance:
    return Instance(Global(module, name), state)


def _size(sizes: tuple[int, ...] | None) -> Call | None:
    return None if sizes is None else Call(Global("torch", "Size"), (sizes,))
