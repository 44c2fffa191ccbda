"""Model and optimizer of a running job, to and from torch_dist directories at any layout.

Every load first reads ``.metadata`` through the allow-list, since megatron's own reader unpickles it unguarded, and
compares the tensors with their checksums, which torch ignores.
"""

from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch.distributed as dist
from megatron.core import dist_checkpointing
from torch.distributed.checkpoint.api import CheckpointException

from mindllm.checkpoint.streaming import StreamingStrategy, find_os_error
from mindllm.formats.torch_dist import OPTIMIZER_PREFIXES, TorchDistReader
from mindllm.parallel.optimizer import Trainer
from mindllm.parallel.schedule import unwrap

# Copied for each use: megatron adds the process group of the moment.
_SHARDING = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def _model_state(chunks: list[Any]) -> dict[str, Any]:
    """Sharded tensors by chunk; their keys carry global layer numbers, so the chunk's own name does not matter.

    Extra states hold fp8 statistics of Transformer Engine: this toolkit computes in bf16 and fp32, and a converted
    checkpoint has none.
    """
    return {
        f"model{number}": {
            key: value
            for key, value in unwrap(chunk).sharded_state_dict(metadata=dict(_SHARDING)).items()
            if not key.endswith("_extra_state")
        }
        for number, chunk in enumerate(chunks)
    }


def _check(directory: Path, optimizer: bool) -> None:
    """Check what is stored of an optimizer, or of the weights; every rank has a share of the blocks."""
    with TorchDistReader(directory) as reader:
        reader.check_loadable()
        keys = {key for key in reader.keys() if key.startswith(OPTIMIZER_PREFIXES) == optimizer}
        reader.check_tensors(keys, dist.get_rank(), dist.get_world_size())


def _fill(chunks: list[Any], loaded: dict[str, Any]) -> None:
    for number, chunk in enumerate(chunks):
        result = unwrap(chunk).load_state_dict(loaded[f"model{number}"], strict=False)
        missing = [key for key in result.missing_keys if not key.endswith("_extra_state")]
        if missing or result.unexpected_keys:
            raise RuntimeError(f"checkpoint lacks {missing} and has unknown {result.unexpected_keys}")


def _chunks_in_one(state: dict[str, Any], num_chunks: int) -> dict[str, Any]:
    """The layout megatron's optimizer expects to find parameters in."""
    return state if num_chunks > 1 else {"model": state["model0"]}


def load_model(chunks: list[Any], directory: Path) -> None:
    """Fill ``chunks`` from the torch_dist checkpoint in ``directory``, which any layout may have written (collective).

    Raises:
        UserError: it is damaged; the message names the file.
    """
    _check(directory, optimizer=False)
    loaded = dist_checkpointing.load(_model_state(chunks), str(directory))
    _fill(chunks, loaded)


def save_training_state(trainer: Trainer, directory: Path) -> None:
    """Write model, optimizer and schedule into the existing, empty ``directory`` (collective).

    Beside what trains, a rank needs memory for one tensor; with several data-parallel ranks also for its share of the
    optimizer's state (12 bytes per parameter, divided by all ranks).

    Raises:
        OSError: a file cannot be written, as on a full disk.
    """
    model = _model_state(trainer.chunks)
    optimizer = trainer.optimizer.sharded_state_dict(
        _chunks_in_one(model, len(trainer.chunks)), metadata=dict(_SHARDING)
    )
    state = {**model, "optimizer": optimizer, "steps_done": trainer.steps_done}
    try:
        dist_checkpointing.save(state, str(directory), StreamingStrategy())
    except (Exception, CheckpointException) as error:  # the latter is no Exception
        refused = find_os_error(error)
        if refused is None:
            raise
        raise OSError(refused.errno, refused.strerror, refused.filename or str(directory)) from error


def load_training_state(trainer: Trainer, directory: Path) -> None:
    """Restore what ``save_training_state`` wrote into ``directory``, from where the weights were loaded (collective).

    Raises:
        UserError: it is damaged; the message names the file.
    """
    _check(directory, optimizer=True)
    model = _model_state(trainer.chunks)
    optimizer = trainer.optimizer.sharded_state_dict(
        _chunks_in_one(model, len(trainer.chunks)), is_loading=True, metadata=dict(_SHARDING)
    )
    state = {**model, "optimizer": optimizer, "steps_done": trainer.steps_done}
    loaded = dist_checkpointing.load(state, str(directory))
    _fill(trainer.chunks, loaded)
    trainer.optimizer.load_state_dict(loaded["optimizer"])
    trainer.resume_schedule(loaded["steps_done"])
