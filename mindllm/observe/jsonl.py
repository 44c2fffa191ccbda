"""The files of a run log: ``metrics.jsonl``, one line per iteration, and ``samples/iter_<iteration>.jsonl``."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mindllm.errors import UserError

_SAMPLES_NAME = re.compile(r"iter_(\d+)\.jsonl")


def to_line(record: Mapping[str, Any]) -> str:
    """Return the record as one line of strict JSON; NaN and infinities become null, which JSON has no number for."""
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Turn numpy and torch scalars into numbers, other unknown objects into their text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if not isinstance(value, float) and hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def write_atomically(path: Path, lines: Iterable[str]) -> None:
    """Write the lines to ``path`` so that it holds either its old content or all of them, even after a kill."""
    partial = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class MetricsFile:
    """``metrics.jsonl``: appended line by line, each on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._drop_torn_line()
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line and sync it to disk."""
        self._file.write(to_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def records(self) -> list[dict[str, Any]]:
        """Read all lines. Raises UserError naming the line that is not a JSON object with an iteration."""
        found = []
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    record = json.loads(line)
                    int(record["iteration"])
                except (ValueError, TypeError, KeyError) as error:
                    raise UserError(
                        f"{self.path}, line {number}: not a JSON object with an 'iteration'; "
                        "move the file away to begin anew"
                    ) from error
                found.append(record)
        return found

    def truncate_after(self, iteration: int) -> None:
        """Keep the lines of iterations up to ``iteration``, atomically."""
        kept = [record for record in self.records() if record["iteration"] <= iteration]
        self._file.close()
        write_atomically(self.path, map(to_line, kept))
        self._file = self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _drop_torn_line(self) -> None:
        """Cut what follows the last newline: a line that a killed process had begun."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)


class SamplesFolder:
    """``samples/iter_0000001.jsonl``: the rows of one iteration per file, which appears only when complete."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, iteration: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows of an iteration, replacing those of an earlier attempt."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / f"iter_{iteration:07d}.jsonl", map(to_line, rows))

    def truncate_after(self, iteration: int) -> None:
        """Remove the files of iterations after ``iteration``, and what a killed process had begun."""
        for path in self.path.glob("*"):
            match = _SAMPLES_NAME.fullmatch(path.name)
            if ".tmp-" in path.name or (match and int(match[1]) > iteration):
                path.unlink()
