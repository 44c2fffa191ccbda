"""The files of a run: found, counted, and read as one stream of rows."""

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mindllm.errors import UserError, did_you_mean
from mindllm.preprocess.inputs import FORMATS, Scan, format_of, is_known, is_saved_dataset
from mindllm.preprocess.inputs.rows import Row

_SHOWN_COLUMNS = 50  # in a message


@dataclass(frozen=True)
class InputFiles:
    """The files of a run in reading order, and what is known of each.

    `sources` says for each file which of the things given as --input it came from.
    """

    paths: tuple[Path, ...]
    scans: tuple[Scan, ...]
    sources: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of rows in all files."""
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows of each file."""
        return tuple(scan.num_rows for scan in self.scans)

    @property
    def can_seek(self) -> bool:
        """Whether reading can start anywhere at little cost."""
        return all(format_of(path).can_seek(path) for path in self.paths)

    @property
    def source_counts(self) -> list[int]:
        """Number of rows of each thing given as --input."""
        counts = [0] * (1 + max(self.sources, default=-1))
        for source, count in zip(self.sources, self.counts, strict=True):
            counts[source] += count
        return counts

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        """Yield rows `start` to `stop` (exclusive), counted over all files.

        Raises:
            UserError: a file is damaged; the message names file and line.
        """
        first = 0
        for path, scan in zip(self.paths, self.scans, strict=True):
            skipped, wanted = max(start - first, 0), min(stop - first, scan.num_rows)
            if skipped < wanted:
                yield from islice(format_of(path).read(path, skipped, scan.marks), wanted - skipped)
            first += scan.num_rows


def find_inputs(inputs: list[str]) -> InputFiles:
    """Resolve files, comma-separated lists, globs and directories, and count their rows.

    Raises:
        UserError: a path does not exist, has an unknown type, is damaged, or there are no rows at all.
    """
    names = [part for name in inputs for part in _split_list(name)]
    found = [(path, source) for source, name in enumerate(names) for path in _expand(name)]
    paths = tuple(path for path, _ in found)
    files = InputFiles(paths, tuple(format_of(path).scan(path) for path in paths), tuple(source for _, source in found))
    if not files.total:
        where = ", ".join(map(str, paths)) or f"no files in {', '.join(names)}"
        raise UserError(f"--input has no rows: {where}")
    return files


def check_columns(path: Path, required: Iterable[str]) -> None:
    """Check that every required column is in some row of a file, reading as many rows as that takes.

    Raises:
        UserError: a column is in no row; the message lists those that are. A file without rows passes.
    """
    file_format, missing = format_of(path), set(required)
    found: dict[str, None] = {}  # in order of appearance
    for row in file_format.read(path, 0):
        found.update(dict.fromkeys(row.values))
        missing -= row.values.keys()
        if not missing or (file_format.has_schema and found):
            break
    if missing and found:
        name = next(name for name in required if name in missing)
        raise UserError(
            f"{path} has no column '{name}' (--map-keys names columns); columns are "
            f"{', '.join(islice(found, _SHOWN_COLUMNS))}{', ...' if len(found) > _SHOWN_COLUMNS else ''}"
            f"{did_you_mean(name, found)}"
        )


def _split_list(name: str) -> list[str]:
    return [name] if Path(name).exists() else [part.strip() for part in name.split(",") if part.strip()]


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return [path] if is_saved_dataset(path) else _expand_directory(path)
    if path.exists():
        format_of(path)
        return [path]
    matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
    if matches:
        return [file for match in matches for file in _expand(match)]
    raise UserError(f"--input {name}: no such file or directory")


def _expand_directory(directory: Path) -> list[Path]:
    found = sorted(
        file for file in directory.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(directory))
    )
    unknown = [str(file) for file in found if not is_known(file)]
    if unknown:
        raise UserError(
            f"--input {directory}: files of unknown type: {', '.join(unknown)}; allowed are {', '.join(FORMATS)}"
        )
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
