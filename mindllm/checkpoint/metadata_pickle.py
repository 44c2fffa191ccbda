"""Reading the pickle beside a torch_dist checkpoint without letting it run code.

PyTorch's own reader unpickles ``.metadata`` with the full pickle machine, so a checkpoint from somebody else could
execute anything. Here only the classes that such a file really holds are allowed.
"""

import pickle
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from mindllm.errors import UserError

_DCP = "torch.distributed.checkpoint."
_ALLOWED = {
    *((_DCP + "metadata", name) for name in ("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata")),
    *((_DCP + "metadata", name) for name in ("MetadataIndex", "StorageMeta", "TensorProperties")),
    *((_DCP + "metadata", name) for name in ("TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    *((_DCP + "planner", name) for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")),
    *((_DCP + "filesystem", name) for name in ("_StorageInfo", "_StoragePrefix")),
    *(("torch", name) for name in ("Size", "device")),
    *(("torch", name) for name in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")),
    *(("torch", name) for name in ("int64", "int32", "int16", "int8", "uint8", "bool")),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class; anything else ends the load before it could be called."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed there")
        return super().find_class(module, name)


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
