"""Writing of torch_dist checkpoints that holds the copy of one tensor at a time."""

import errno
import os
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _write_item
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

# In messages of torch.save, which does not say why.
_TORCH_COULD_NOT_WRITE = ("PytorchStreamWriter", "inline_container.cc", "iostream error")


class StreamingStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # megatron-core has no types
    """megatron's ``torch_dist`` strategy with a writer of its own.

    megatron's writer first clones every tensor that is part of a larger one, as all weights are, and torch's keeps a
    reference to every clone until its file is complete.
    """

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: Path) -> None:
        """Write this rank's tensors into ``checkpoint_dir`` (collective)."""
        state, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        save(mcore_to_pyt_state_dict(state, False), storage_writer=_StreamingWriter(checkpoint_dir), planner=planner)


class _StreamingWriter(FileSystemWriter):
    """One file per rank, written tensor by tensor and synced to disk."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write every item of ``plan``, those that hold bytes first."""
        done: Future[list[WriteResult]] = Future()
        items = sorted(plan.items, key=lambda item: item.type != WriteItemType.BYTE_IO)
        results: list[WriteResult] = []
        if items:
            name = f"{plan.storage_data.prefix}0.distcp"
            path = Path(self.path) / name
            try:
                with open(path, "wb") as file:
                    for item in items:
                        data = _on_host(planner, item)
                        results.append(_write_item(self.transforms, file, data, item, name, self.serialization_format))
                    file.flush()
                    os.fsync(file.fileno())
            except Exception as error:
                refused = find_os_error(error)  # here, because it is lost on the way to other ranks
                if refused is None:
                    raise
                raise OSError(refused.errno, refused.strerror, str(path)) from error
        done.set_result(results)
        return done


def find_os_error(error: BaseException) -> OSError | None:
    """What the operating system refused, where ``error`` of a failed save is because of that."""
    if isinstance(error, OSError):
        return error
    others = [wrapped[0] for wrapped in getattr(error, "failures", {}).values()]  # of a CheckpointException, by rank
    causes = [cause for cause in (*others, error.__cause__, error.__context__) if cause is not None]
    found = next((found for cause in causes if (found := find_os_error(cause)) is not None), None)
    if found is None and any(sign in str(error) for sign in _TORCH_COULD_NOT_WRITE):
        return OSError(errno.EIO, "it cannot be written; the disk may be full")
    return found


def _on_host(planner: SavePlanner, item: WriteItem) -> Any:
    """The bytes, or the tensor in host memory with a storage of its own: all of a storage is written."""
    data = planner.resolve_data(item)
    if not isinstance(data, torch.Tensor):
        return data
    tensor = data.detach().cpu()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
