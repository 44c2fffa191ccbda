"""Commit last: outputs are written in a staging directory and renamed when all of them are complete."""

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mindllm.data.manifest import manifest_path, read_manifest
from mindllm.errors import UserError


def refuse_existing(prefix: Path, overwrite: bool) -> None:
    """Raise UserError when the prefix holds data already and overwriting was not asked for."""
    if manifest_path(prefix).exists() and not overwrite:
        raise UserError(f"{manifest_path(prefix)} exists already; --overwrite replaces that data")


@contextmanager
def staging_directory(prefix: Path) -> Iterator[Path]:
    """A directory beside the outputs, on the same file system, gone when the block ends.

    Raises:
        UserError: the directory of the outputs cannot be written.
    """
    stem = f"{prefix.name}.tmp-{socket.gethostname()}-"
    staging = prefix.parent / f"{stem}{os.getpid()}"
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(prefix.parent, stem)
        staging.mkdir()
    except OSError as error:
        raise UserError(f"--output-prefix {prefix}: cannot write there: {error}") from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def commit(prefix: Path, staged: Sequence[Path]) -> None:
    """Move staged files to their final place, in order; the last one must be the manifest.

    Data is complete exactly when its manifest is there: an older manifest goes first, with the files it lists.
    """
    if manifest_path(prefix).exists():
        outdated = _outputs_of(prefix)
        manifest_path(prefix).unlink()
        for path in outdated:
            path.unlink(missing_ok=True)
    for path in staged:
        path.replace(prefix.parent / path.name)


def _outputs_of(prefix: Path) -> list[Path]:
    try:
        return [prefix.parent / Path(name).name for name in read_manifest(prefix)["outputs"]]
    except (UserError, KeyError):
        return []  # a damaged manifest is replaced like any other


def _remove_leftovers(parent: Path, stem: str) -> None:
    """Remove staging directories of runs on this machine that were killed."""
    for path in parent.iterdir():
        pid = path.name.removeprefix(stem)
        if path.name.startswith(stem) and pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
