"""What a run directory remembers of earlier processes: who has it open, configuration, data, models it loaded."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import yaml
from filelock import FileLock, Timeout

from mindllm.checkpoint import latest_iteration_dir
from mindllm.command_line import say
from mindllm.config import RewardConfig, RunConfig
from mindllm.data.manifest import hash_file
from mindllm.errors import UserError
from mindllm.files import write_atomically

_CONFIG_NAME = "config.yaml"
_LOCK_NAME = ".lock"
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of each file of weights, spread evenly


@dataclass(frozen=True)
class Frozen:
    """The checkpoint of a model that does not train: key ``load``, and the iteration directory taken from it."""

    load: str
    directory: Path
    weights: str  # hash of samples of its files, as they are when the model is loaded

    def as_state(self) -> dict[str, str]:
        """What a checkpoint of the run remembers."""
        return {"load": self.load, "iteration": self.directory.name, "weights": self.weights}


def find_frozen(role: str, load: str, before: Mapping[str, str] | None) -> Frozen:
    """Find the checkpoint of a model that does not train.

    Args:
        role: of the model.
        load: value of its key.
        before: what ``Frozen.as_state`` returned in the process that began the run; None where the run begins, or was
            begun by a version that did not remember it.

    Returns:
        The latest iteration of ``load``; or, while the key is what it was, the iteration with which the run began.

    Raises:
        UserError: ``load`` is no checkpoint directory, or that iteration is gone or has other weights now.
    """
    latest = latest_iteration_dir(load)
    if before is None or Path(before["load"]).resolve() != Path(load).resolve():
        return Frozen(load, latest, _sample_weights(latest))
    directory = Path(load) / before["iteration"]
    if not directory.is_dir():
        raise UserError(
            f"{role}.load: {directory}, which the run was begun with, is gone; put it back, or name another checkpoint"
        )
    found = Frozen(load, directory, _sample_weights(directory))
    if before.get("weights", found.weights) != found.weights:
        raise UserError(
            f"{role}.load: {directory} has other weights than when the run was begun; put those back, or move the new "
            "ones to another directory and name that"
        )
    if directory != latest:
        say(f"{role}.load: {directory}, as when the run was begun, although {latest.name} is there now")
    return found


def _sample_weights(directory: Path) -> str:
    """Hash of samples of the files with the weights: other weights have another one, and no file is read whole."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.distcp")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def lock(directories: Mapping[str, Path]) -> ExitStack:
    """Take directories (by the key that names each) for this process, until it ends or what is returned is closed.

    Raises:
        UserError: another process has one of them.
    """
    with ExitStack() as held:
        for key, directory in directories.items():
            directory.mkdir(parents=True, exist_ok=True)
            one = FileLock(directory / _LOCK_NAME)
            try:
                one.acquire(timeout=0)
            except Timeout:
                raise UserError(
                    f"{key}: another process is running in {directory}; wait for its end or write another "
                    f"{key.rpartition('.')[2]}"
                ) from None
            held.callback(one.release)
        return held.pop_all()


class DataSet(Protocol):
    """Indexed data."""

    @property
    def content_hash(self) -> str:
        """Equal for equal data, wherever it lies."""

    def __len__(self) -> int: ...


class DataOrigin:
    """The data a run reads, as it is remembered in every checkpoint: a resumed run goes on with the same contents.

    Where the data lies does not count. A key that was not written before, or is not any more, is no change of contents.
    """

    def __init__(self, run_dir: Path, allow_changed: bool) -> None:
        """``allow_changed``: print what has changed instead of refusing it."""
        self._run_dir, self._allow_changed = run_dir, allow_changed
        self._data: dict[str, dict[str, Any]] = {}

    @classmethod
    def of(cls, config: RunConfig, data: DataSet, held_out: DataSet | None) -> Self:
        """The data of a run: what ``data_path`` names, and what ``training.eval_data_path`` does."""
        origin = cls(Path(config.training.run_dir), config.training.allow_changed_data)
        origin.add("data_path", config.actor.data_path, data)
        if held_out is not None:
            origin.add("training.eval_data_path", config.training.eval_data_path, held_out)
        return origin

    def add(self, key: str, prefix: str, data: DataSet) -> None:
        """Add the data that the configuration names by ``key``."""
        self._data[key] = {"prefix": prefix, "rows": len(data), "content_hash": data.content_hash}

    def state_dict(self) -> dict[str, Any]:
        """Prefix, number of rows and content hash by key."""
        return self._data

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare with the data of the earlier process.

        Raises:
            UserError: contents have changed, and that is not allowed.
        """
        for key, now in self._data.items():
            before = state.get(key, now)
            if before["content_hash"] == now["content_hash"]:
                continue
            earlier = "what" if before["prefix"] == now["prefix"] else before["prefix"] + ", which"
            found = (
                f"{key}: {now['prefix']} has other contents than {earlier} the run in {self._run_dir} has read so far "
                f"({before['rows']} rows then, {now['rows']} now)"
            )
            if not self._allow_changed:
                raise UserError(
                    f"{found}; put the data back, write another training.run_dir, or go on with what is there now by "
                    "training.allow_changed_data=true"
                )
            say(found)


class RewardFiles:
    """The files of a run's own reward functions, as they are remembered in every checkpoint.

    A file may be changed between two processes of a run, as to mend a mistake in it; that is named.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._hashes = {path: hash_file(Path(path)) for path in paths}

    @classmethod
    def of(cls, reward: RewardConfig) -> Self:
        """The files that ``reward.functions`` names."""
        return cls(sorted({function.path for function in reward.functions if function.path is not None}))

    def state_dict(self) -> dict[str, str]:
        """Hash by path."""
        return self._hashes

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Print which of the files are not what the earlier process had under their paths."""
        for path, found in self._hashes.items():
            if state.get(path, found) != found:
                say(f"changed since the run was last started: the contents of {path} (reward.functions)")


def write_config(run_dir: Path, resolved: str) -> None:
    """Keep the configuration ``resolved`` for the next process."""
    write_atomically(run_dir / _CONFIG_NAME, [resolved])


def changed_keys(run_dir: Path, resolved: str) -> list[str]:
    """Return a line for each key whose value in the configuration ``resolved`` is not that of the earlier process.

    ``training.run_dir`` does not count: a run may be moved. Keys that are missing show as ``unset``.
    """
    path = run_dir / _CONFIG_NAME
    if not path.is_file():
        return []
    try:
        before = dict(_flat(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (ValueError, AttributeError, yaml.YAMLError):
        return [f"{path} is damaged: keys that were changed since the run was last started cannot be named"]
    now = dict(_flat(yaml.safe_load(resolved)))
    lines = []
    for key in sorted((before.keys() | now.keys()) - {"training.run_dir"}):
        old, new = before.get(key, "unset"), now.get(key, "unset")
        if old != new:
            unread = " (not read: the weights are those of the run's checkpoint)" if _is_trained_load(key) else ""
            lines.append(f"changed since the run was last started: {key}: {old} -> {new}{unread}")
    return lines


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_trained_load(key: str) -> bool:
    return key in ("actor_rollout_ref.actor_rollout.load", "critic.load")
