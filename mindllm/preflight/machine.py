"""The machine and the file system against the run."""

import importlib.util
import tempfile
from pathlib import Path

from mindllm.checkpoint.run_state import complete_iterations
from mindllm.config import RunConfig
from mindllm.errors import UserError


def check_executor(config: RunConfig) -> None:
    """One process can host the run where it is to run inline. Raises UserError."""
    world = config.resource_pool.world_size("actor_rollout")
    if config.training.executor == "inline" and world != 1:
        raise UserError(
            f"training.executor: 'inline' runs one process, but resource_pool.actor_rollout asks for {world}; use 'ray'"
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
