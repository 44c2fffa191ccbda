"""Saving and resuming a run: the directories of its roles plus one manifest per iteration, which is written last."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindllm.checkpoint.info import trained_iteration
from mindllm.errors import UserError, naming_file
from mindllm.files import remove_partial, sync_tree, write_atomically

TRACKER = "latest_checkpointed_iteration.txt"
_MANIFEST_NAME = re.compile(r"iter_(\d+)\.json")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Saved:
    """One complete checkpoint. state: what the driver wanted back. roles: role -> its iteration directory."""

    iteration: int
    state: dict[str, Any]
    roles: dict[str, Path]


class RunState:
    """Checkpoints of one run.

    A role's weights lie in ``<its save directory>/iter_0000001``; ``<run_dir>/checkpoints/iter_0000001.json`` makes the
    iteration count. It names directories without their parents, so that a run can be moved or copied.

    While an iteration's directories are written or removed, there is a file ``iter_0000001.unfinished`` in its place.
    What a process left that was killed just then is removed by the next one.
    """

    def __init__(self, run_dir: Path, role_directories: dict[str, Path], keep_last: int | None) -> None:
        """
        Args:
            run_dir: of the run.
            role_directories: role -> directory of its checkpoints.
            keep_last: complete checkpoints to keep, None for all.
        """
        self._manifests = run_dir / "checkpoints"
        self._directories = role_directories
        self._keep_last = keep_last

    def latest(self) -> Saved | None:
        """The newest complete checkpoint, or None.

        Raises:
            UserError: a manifest cannot be read, or names a directory that is gone; or there is none, and
                a role's directory holds another run's checkpoints.
        """
        manifests = self._complete()
        if manifests:
            return self._read(manifests[-1])
        for role, directory in self._directories.items():
            if (directory / TRACKER).is_file():
                raise UserError(
                    f"{role}.save: {directory} holds checkpoints that are not of this run_dir, which the run would "
                    "overwrite; move them or name another directory"
                )
        return None

    def clean_up(self) -> None:
        """Remove what killed processes left of checkpoints that were not complete, or no longer kept.

        To be called after ``latest``, which refuses the directories of another run.
        """
        self._remove_unfinished()
        for directory in (self._manifests, *self._directories.values()):
            remove_partial(directory)
        for path in self._outdated():
            _remove(path)

    def _remove_unfinished(self) -> None:
        for journal in self._manifests.glob(f"iter_[0-9]*{_UNFINISHED}"):
            is_complete = journal.with_suffix(".json").exists()
            removed = [is_complete or _remove(path / journal.stem) for path in self._directories.values()]
            if all(removed):
                journal.unlink()

    def _outdated(self) -> list[Path]:
        """Directories in the run directory that are older than all checkpoints which ``keep_last`` keeps.

        One counts only if it says itself that training wrote it: others may be anybody's.
        """
        run_dir = self._manifests.parent
        kept = complete_iterations(run_dir)
        if self._keep_last is None or not kept:
            return []
        own = [path for path in self._directories.values() if path.resolve().is_relative_to(run_dir.resolve())]
        found = {path: trained_iteration(path) for directory in own for path in directory.glob("iter_*")}
        return [
            path
            for path, iteration in found.items()
            if iteration is not None and iteration < min(kept) and path.name == iteration_name(iteration)
        ]

    def save(self, iteration: int, state: dict[str, Any], writers: dict[str, Callable[[Path], None]]) -> None:
        """Write a checkpoint; it counts once everything is there.

        Args:
            iteration: number of completed iterations.
            state: JSON values.
            writers: role -> function that fills an existing, empty directory.

        Raises:
            OSError: a file cannot be written, which it names; the checkpoints before are as they were.
        """
        name = iteration_name(iteration)
        roles, final = dict.fromkeys(writers, name), self._manifests / f"{name}.json"
        journal = final.with_suffix(_UNFINISHED)
        self._manifests.mkdir(parents=True, exist_ok=True)
        journal.touch()
        try:
            for role, write in writers.items():
                _write_role(self._directories[role] / name, write)
            manifest = {"iteration": iteration, "roles": roles, "state": state}
            write_atomically(final, [json.dumps(manifest, indent=1)])
        except Exception:
            self._remove_unfinished()
            raise
        journal.unlink()
        for role in writers:
            write_atomically(self._directories[role] / TRACKER, [f"{iteration}\n"])
        self._prune()

    def _complete(self) -> list[Path]:
        return [path for _, path in sorted(complete_iterations(self._manifests.parent).items())]

    def _read(self, path: Path) -> Saved:
        try:
            manifest = json.loads(path.read_text())
            names = {role: name for role, name in manifest["roles"].items() if role in self._directories}
            roles = {role: self._directories[role] / name for role, name in names.items()}
            saved = Saved(int(manifest["iteration"]), dict(manifest["state"]), roles)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: not a readable checkpoint manifest ({error}); delete the file to go back to the checkpoint "
                "before it"
            ) from error
        for role, directory in saved.roles.items():
            if not directory.is_dir():
                raise UserError(
                    f"{path}: the {role} checkpoint {directory} it names is gone; delete the file to go back"
                )
        return saved

    def _prune(self) -> None:
        """Remove old checkpoints, which no longer count from the moment on in which they have no manifest."""
        if self._keep_last is None:
            return
        for path in self._complete()[: -self._keep_last]:
            path.replace(path.with_suffix(_UNFINISHED))
        self._remove_unfinished()


def complete_iterations(run_dir: Path) -> dict[int, Path]:
    """Manifest of every complete checkpoint of a run, by iteration."""
    found = {path: _MANIFEST_NAME.fullmatch(path.name) for path in (run_dir / "checkpoints").glob("iter_*.json")}
    return {int(match[1]): path for path, match in found.items() if match}


def _write_role(final: Path, write: Callable[[Path], None]) -> None:
    """Fill ``final`` under another name, then give it its own."""
    _remove(final)
    unfinished = final.with_name(f"{final.name}.tmp")
    unfinished.mkdir(parents=True)
    with naming_file(unfinished):
        write(unfinished)
        sync_tree(unfinished)
    unfinished.rename(final)


def _remove(final: Path) -> bool:
    """Remove a role's directory of an iteration, complete or not; returns whether nothing is left of it."""
    directories = (final, final.with_name(f"{final.name}.tmp"))
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
    return not any(directory.exists() for directory in directories)


def iteration_name(iteration: int) -> str:
    """Megatron's directory name of an iteration."""
    return f"iter_{iteration:07d}"
