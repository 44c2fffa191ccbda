"""Directories that appear under their final name only when they are complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindllm.errors import UserError, naming_file


@contextmanager
def committed_directory(final: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a new directory beside ``final`` and rename it to ``final`` when the block ends without an exception.

    After an exception it is removed; a killed process leaves ``<final>.tmp-<pid>``, which nothing reads. Raises
    UserError when ``final`` exists and is not an empty directory, or its disk has less than ``needed_bytes`` free, and
    OSError, which names a file, where the operating system refuses something on the way.
    """
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise UserError(f"{final} exists and is not empty; choose another --save-dir or remove it")
    staged = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:
        with naming_file(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(final.parent).free
            if free < needed_bytes:
                raise UserError(f"{final.parent} has {free:,} bytes free; {needed_bytes:,} are needed")
            staged.mkdir()
            yield staged
            staged.rename(final)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
