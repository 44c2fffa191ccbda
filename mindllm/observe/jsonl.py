"""The files of a run log: ``metrics.jsonl``, one line per iteration, and ``samples/iter_<iteration>.jsonl``."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mindllm.errors import UserError, naming_file
from mindllm.files import remove_partial, write_atomically

_SAMPLES_NAME = re.compile(r"iter_(\d+)\.jsonl")
SAMPLES_BYTES = "samples/bytes"
"""Size of an iteration's samples file, recorded with its metrics."""


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


class MetricsFile:
    """``metrics.jsonl``: appended line by line, each on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mend_end()
        self._file = path.open("ab", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line and sync it to disk.

        Raises:
            OSError: it names the file, which ends with the line before.
        """
        with naming_file(self.path):
            size = os.fstat(self._file.fileno()).st_size
            try:
                _write_all(self._file.fileno(), to_line(record).encode("utf-8", "backslashreplace"))
                os.fsync(self._file.fileno())
            except OSError:
                os.truncate(self.path, size)
                raise

    def records(self) -> list[dict[str, Any]]:
        """The records of all lines that can be read."""
        records = (parse_record(line) for line in self.path.read_bytes().split(b"\n"))
        return [record for record in records if record is not None]

    def truncate_after(self, iteration: int) -> list[str]:
        """Keep one line for each iteration up to ``iteration``, atomically.

        What cannot be read after the last of them belongs to iterations that are done again, and goes with them.

        Returns:
            What had to be mended or is missing, as sentences.

        Raises:
            UserError: a line among those to keep cannot be read.
        """
        lines = self.path.read_bytes().split(b"\n")
        records = [parse_record(line) for line in lines]
        wanted = [number for number, found in enumerate(records) if found and found["iteration"] <= iteration]
        damaged = [number for number, found in enumerate(records) if found is None and lines[number].strip()]
        if wanted and damaged and damaged[0] < wanted[-1]:
            raise UserError(
                f"{self.path}, line {damaged[0] + 1}: not a JSON object with an 'iteration'; mend or delete the line, "
                "or move the file away to begin a new one"
            )
        # The later of two lines for one iteration is that of the process that did it last.
        kept = {records[number]["iteration"]: lines[number].strip() for number in wanted}  # type: ignore[index]
        self._file.close()
        write_atomically(self.path, (kept[number].decode("utf-8") + "\n" for number in sorted(kept)))
        self._file = self.path.open("ab", buffering=0)
        return self._findings(len(damaged), len(wanted) - len(kept), set(range(1, iteration + 1)) - kept.keys())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _findings(self, damaged: int, repeated: int, missing: set[int]) -> list[str]:
        found = []
        if damaged:
            found.append(f"{self.path}: {damaged} damaged line(s) at its end were dropped")
        if repeated:
            found.append(f"{self.path}: {repeated} repeated line(s) were dropped")
        if missing:
            count = f"{len(missing)} of the iterations {min(missing)} to {max(missing)}"
            found.append(f"{self.path}: it has no lines for {count}, which are not done again")
        return found

    def _mend_end(self) -> None:
        """Make the file end with a newline: complete a whole last line, cut one that a killed process had begun.

        A file system may have filled the end with NUL bytes after a power failure.
        """
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        last = content[whole:].rstrip(b"\0")
        if whole < len(content):
            os.truncate(self.path, whole)
        if parse_record(last) is not None:
            with naming_file(self.path), self.path.open("ab") as file:
                file.write(last + b"\n")


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line of metrics, or None where there is none with an iteration."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    iteration = record.get("iteration")
    return record if isinstance(iteration, int) and not isinstance(iteration, bool) and iteration >= 0 else None


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class SamplesFolder:
    """``samples/iter_0000001.jsonl``: the rows of one iteration per file, which appears only when complete."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, iteration: int, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write the rows of an iteration, replacing those of an earlier attempt; returns the size in bytes."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self._file(iteration)
        write_atomically(path, map(to_line, rows))
        return path.stat().st_size

    def truncate_after(self, iteration: int) -> None:
        """Remove the files of iterations after ``iteration``, and what a killed process had begun."""
        remove_partial(self.path)
        for path in self.path.glob("iter_*.jsonl"):
            match = _SAMPLES_NAME.fullmatch(path.name)
            if match and int(match[1]) > iteration:
                path.unlink()

    def damaged(self, sizes: Mapping[int, int]) -> list[str]:
        """A sentence for each file that is there but is not as it was written: cut, or filled up with NUL bytes.

        Args:
            sizes: iteration -> size of its file in bytes.
        """
        found = []
        for iteration, size in sizes.items():
            path = self._file(iteration)
            if not path.is_file():
                continue
            now = path.stat().st_size
            if now != size or (size and not _ends_with_newline(path)):
                what = f"{now} bytes instead of {size}" if now != size else "it does not end with a newline"
                found.append(f"{path} is damaged: {what}; its iteration is not done again")
        return found

    def _file(self, iteration: int) -> Path:
        return self.path / f"iter_{iteration:07d}.jsonl"


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
