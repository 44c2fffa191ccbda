"""The machine and the file system against the run."""

import importlib.util
import os
import tempfile
from pathlib import Path

from mindllm.device import has_accelerator

from mindllm.checkpoint import CheckpointInfo
from mindllm.checkpoint.run_state import complete_iterations
from mindllm.config import RunConfig
from mindllm.errors import UserError

# Weights, fp32 gradient, fp32 master weights and two Adam moments.
_BYTES_PER_PARAMETER = {"fp32": 4 + 4 + 8, "bf16": 2 + 4 + 4 + 8}


def check_executor(config: RunConfig) -> None:
    """One process can host the run where it is to run inline. Raises UserError."""
    world = config.resource_pool.world_size("actor_rollout")
    if config.training.executor == "inline" and world != 1:
        raise UserError(
            f"training.executor: 'inline' runs one process, but resource_pool.actor_rollout asks for {world}; use 'ray'"
        )


def check_memory(config: RunConfig, info: CheckpointInfo) -> None:
    """The actor's weights and optimizer fit the host where the ranks run on it. Raises UserError.

    Only for CPU ranks started here; a cluster's nodes are not seen from the driver.
    """
    if has_accelerator() or os.environ.get("RAY_ADDRESS"):
        return
    arch = info.architecture
    attention = arch.hidden_size * arch.head_dim * 2 * (arch.num_attention_heads + arch.num_query_groups)
    feed_forward = 3 * arch.hidden_size * arch.ffn_hidden_size
    embeddings = arch.vocab_size * arch.hidden_size * (1 if arch.tie_embeddings else 2)
    parameters = arch.num_layers * (attention + feed_forward) + embeddings
    replicas = config.data_parallel_size()
    needed = parameters * _BYTES_PER_PARAMETER["bf16" if config.actor.bf16 else "fp32"] * replicas
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise UserError(
            f"actor.load: {replicas} replica(s) of {parameters / 1e9:.1f} billion parameters need "
            f"{needed / 2**30:.0f} GiB for weights and optimizer, this machine has {available / 2**30:.0f} GiB"
        )


def check_trackers(trackers: list[str]) -> None:
    """The library of every tracker is installed. Raises UserError."""
    for name in trackers:
        if name != "jsonl" and importlib.util.find_spec(name) is None:
            raise UserError(f"training.trackers: '{name}' is not installed; pip install {name}, or leave it out")


def check_writable(directory: Path, key: str) -> None:
    """``directory`` can be made and written to. Raises UserError."""
    existing = directory
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"{key}: {existing} is a file, not a directory")
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()  # os.access says yes to root everywhere
    except OSError as error:
        raise UserError(f"{key}: {existing} is not writable ({error.strerror})") from None


def check_completed(config: RunConfig) -> int:
    """Iterations the run has behind it; not more than it is to have. Raises UserError."""
    completed = max(complete_iterations(Path(config.training.run_dir)), default=0)
    if completed > config.training.train_iters:
        raise UserError(
            f"training.train_iters: {config.training.train_iters}, but the run in {config.training.run_dir} has "
            f"{completed} iterations behind it; write at least that, or another run_dir"
        )
    return completed


def check_export(directory: Path) -> None:
    """The export of a run that is not finished would overwrite nothing. Raises UserError."""
    check_writable(directory, "training.export_hf")
    if directory.exists():
        raise UserError(f"training.export_hf: {directory} exists already; name a directory that does not")
