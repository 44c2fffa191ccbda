"""Commit last: outputs are written in a staging directory and renamed when all of them are complete.

Renaming several files takes several steps, between which a process can be killed. So a journal beside them comes before
the first step and goes with the last: while it is there nothing of these outputs counts as data, and the next run
removes what it lists.
"""

import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mindllm.data.manifest import journal_path, manifest_path, read_manifest
from mindllm.errors import UserError, describe_os_error


def refuse_existing(prefix: Path, outputs: Sequence[Path], overwrite: bool) -> None:
    """Raise UserError when one of the outputs of a run holds data already and overwriting was not asked for.

    Args:
        prefix: of the run.
        outputs: the prefixes it writes: this one, or one for each split.
        overwrite: whether it was asked for.
    """
    if overwrite or journal_path(prefix).exists():
        return
    for output in outputs:
        if manifest_path(output).exists():
            raise UserError(f"{manifest_path(output)} exists already; --overwrite replaces that data")


@contextmanager
def staging_directory(prefix: Path) -> Iterator[Path]:
    """A directory beside the outputs, on the same file system, gone when the block ends.

    What killed runs left goes first; directories that were made for the outputs go too when there are none.

    Raises:
        UserError: the directory of the outputs cannot be written.
    """
    stem = f"{prefix.name}.tmp-{socket.gethostname()}-"
    staging = prefix.parent / f"{stem}{os.getpid()}"
    new = [directory for directory in (prefix.parent, *prefix.parent.parents) if not directory.exists()]
    try:
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(prefix.parent, stem)
            _undo_commit(prefix)
            staging.mkdir()
        except OSError as error:
            raise UserError(f"--output-prefix {prefix}: cannot write there: {describe_os_error(error)}") from error
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for directory in new:
            with suppress(OSError):  # it holds the outputs
                directory.rmdir()


def commit(prefix: Path, outputs: Sequence[Path], staged: Mapping[Path, Sequence[Path]]) -> None:
    """Move the outputs of a run to their final places, all or, for any reader of ours, none.

    Args:
        prefix: of the run.
        outputs: the prefixes whose older data this run replaces.
        staged: for each prefix its files, the manifest last; all lie in the staging directory.
    """
    outdated = [path for output in outputs for path in _files_of(output)]
    final = {path: prefix.parent / path.name for files in staged.values() for path in files}
    journal = journal_path(prefix)
    draft = next(iter(final)).parent / journal.name
    draft.write_text(json.dumps(sorted({path.name for path in (*outdated, *final.values())})), "utf-8")
    draft.replace(journal)
    for path in outdated:
        path.unlink(missing_ok=True)
    for path, target in final.items():
        path.replace(target)
    journal.unlink()


def _undo_commit(prefix: Path) -> None:
    """Remove the files of a commit that was interrupted."""
    journal = journal_path(prefix)
    if not journal.exists():
        return
    for name in json.loads(journal.read_text("utf-8")):
        (prefix.parent / Path(name).name).unlink(missing_ok=True)
    journal.unlink()


def _files_of(output: Path) -> list[Path]:
    """The manifest of an output, if there is one, and the files it lists."""
    if not manifest_path(output).exists():
        return []
    try:
        listed = [output.parent / Path(name).name for name in read_manifest(output)["outputs"]]
    except (UserError, KeyError):
        listed = []  # a damaged manifest is replaced like any other
    return [manifest_path(output), *listed]


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
