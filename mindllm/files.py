"""Files that hold what was written or what was there before, whatever interrupts the writing."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mindllm.errors import naming_file


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write the lines to ``path`` so that it holds either its old content or all of them, even after a power failure.

    Raises:
        OSError: it names ``path``; nothing is left beside it.
    """
    partial = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with naming_file(path):
            # A lone surrogate, which UTF-8 has no bytes for, becomes its escape, which is one of JSON too.
            with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_names(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def remove_partial(directory: Path) -> None:
    """Remove what killed processes left of ``write_atomically`` in ``directory``."""
    for path in directory.glob(".*.tmp-*"):
        path.unlink(missing_ok=True)


def sync_tree(directory: Path) -> None:
    """Put all files in ``directory`` on disk, so that they are there even after a power failure."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with open(Path(parent) / name, "rb") as file:
                os.fsync(file.fileno())
        _sync_names(Path(parent))


def _sync_names(directory: Path) -> None:
    """Put the names in ``directory`` on disk, where its file system can."""
    descriptor = os.open(directory, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)
