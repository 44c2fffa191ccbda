"""Saving and resuming a run: the directories of its roles plus one manifest per iteration, which is written last."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindllm.errors import UserError

TRACKER = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True)
class Saved:
    """One complete checkpoint. state: what the driver wanted back. roles: role -> its iteration directory."""

    iteration: int
    state: dict[str, Any]
    roles: dict[str, Path]


class RunState:
    """Checkpoints of one run.

    A role's weights lie in ``<its save directory>/iter_0000001``; ``<run_dir>/checkpoints/iter_0000001.json`` makes the
    iteration count. It names directories without their parents, so that a run can be moved or copied. A directory
    without that file is what an interrupted save left, and is written anew.
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

    def save(self, iteration: int, state: dict[str, Any], writers: dict[str, Callable[[Path], None]]) -> None:
        """Write a checkpoint; it counts once everything is there.

        Args:
            iteration: number of completed iterations.
            state: JSON values.
            writers: role -> function that fills an existing, empty directory.
        """
        roles = {}
        for role, write in writers.items():
            final = self._directories[role] / iteration_name(iteration)
            unfinished = final.with_name(final.name + ".tmp")
            for leftover in (unfinished, final):
                shutil.rmtree(leftover, ignore_errors=True)
            unfinished.mkdir(parents=True)
            write(unfinished)
            unfinished.rename(final)
            roles[role] = final.name
        self._manifests.mkdir(parents=True, exist_ok=True)
        manifest = {"iteration": iteration, "roles": roles, "state": state}
        _write_text(self._manifests / f"{iteration_name(iteration)}.json", json.dumps(manifest, indent=1))
        for role in writers:
            _write_text(self._directories[role] / TRACKER, f"{iteration}\n")
        self._prune()

    def _complete(self) -> list[Path]:
        return sorted(self._manifests.glob("iter_*.json"))

    def _read(self, path: Path) -> Saved:
        try:
            manifest = json.loads(path.read_text())
            names = {role: name for role, name in manifest["roles"].items() if role in self._directories}
            roles = {role: self._directories[role] / name for role, name in names.items()}
            saved = Saved(manifest["iteration"], manifest["state"], roles)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: not a readable checkpoint manifest ({error})") from error
        for role, directory in saved.roles.items():
            if not directory.is_dir():
                raise UserError(
                    f"{path}: the {role} checkpoint {directory} it names is gone; delete the file to go back"
                )
        return saved

    def _prune(self) -> None:
        """Forget old checkpoints: the manifest goes first, so that no half-deleted one counts."""
        if self._keep_last is None:
            return
        for path in self._complete()[: -self._keep_last]:
            roles = json.loads(path.read_text())["roles"]
            path.unlink()
            for role, name in roles.items():
                if role in self._directories:
                    shutil.rmtree(self._directories[role] / name, ignore_errors=True)


def iteration_name(iteration: int) -> str:
    """Megatron's directory name of an iteration."""
    return f"iter_{iteration:07d}"


def _write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
