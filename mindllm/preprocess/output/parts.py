"""Parts of an output: written one by one by whoever encodes, and joined as streams."""

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mindllm.data.sidecar import Spool
from mindllm.preprocess.handlers import Encoded

ID_KEYS = ("input_ids", "text")  # ends of the names of keys that hold text; the others annotate it


@dataclass
class Part:
    """What a part's files hold. In memory stay 4 bytes a sample and key for lengths, and 8 a sample for its row."""

    directory: Path
    lengths: dict[str, list[np.ndarray]] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)  # the input row of each sample, int64
    rows_in: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    trained_tokens: int = 0

    def add(self, encoded: Encoded, rows: np.ndarray) -> None:
        """Count another batch, of these input rows (int64)."""
        for key, lengths in encoded.lengths.items():
            self.lengths.setdefault(key, []).append(lengths)
        self.rows.append(rows[encoded.kept])
        self.rows_in += encoded.rows_in
        self.dropped += encoded.dropped
        self.changed += encoded.changed
        self.trained_tokens += encoded.trained_tokens

    def tokens_file(self, key: str) -> Path:
        """Where the tokens of an output key lie."""
        return self.directory / f"{key}.tokens"

    @property
    def spool_file(self) -> Path:
        """Where the extra columns lie."""
        return self.directory / "columns.spool"


def write_part(directory: Path, keys: Sequence[str], batches: Iterable[tuple[Encoded, np.ndarray]]) -> Part:
    """Write batches (each with its input rows, int64), in order, to the files of a part."""
    directory.mkdir()
    part = Part(directory)
    with ExitStack() as stack:
        files = {key: stack.enter_context(part.tokens_file(key).open("wb")) for key in keys}
        spool = Spool(stack.enter_context(part.spool_file.open("wb")))
        for encoded, rows in batches:
            for key, file in files.items():
                file.write(encoded.tokens[key].astype("<i4", copy=False).data)
            spool.append(encoded.columns)
            part.add(encoded, rows)
    for key, lengths in part.lengths.items():
        part.lengths[key] = [np.concatenate(lengths)]  # one array takes less than many small ones
    part.rows = [np.concatenate(part.rows)] if part.rows else []
    return part


@dataclass
class Joined:
    """All samples in input order: their counts in memory, their tokens in one file for each key."""

    directory: Path
    lengths: dict[str, np.ndarray]  # int32 [num_samples] for each key
    rows: np.ndarray  # int64 [num_samples]
    spools: list[Path]
    rows_in: int
    dropped: Counter[str]
    changed: Counter[str]
    trained_tokens: int

    def tokens_file(self, key: str) -> Path:
        """Where the tokens of an output key lie."""
        return self.directory / f"{key}.joined"


def join_parts(parts: Sequence[Part], directory: Path, keys: Sequence[str]) -> Joined:
    """Join parts, in order; their files are used up."""
    lengths = {}
    for key in keys:
        arrays = [array for part in parts for array in part.lengths.pop(key, [])]
        lengths[key] = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    joined = Joined(
        directory,
        lengths,
        np.concatenate([np.empty(0, np.int64), *(array for part in parts for array in part.rows)]),
        [part.spool_file for part in parts],
        sum(part.rows_in for part in parts),
        sum((part.dropped for part in parts), Counter()),
        sum((part.changed for part in parts), Counter()),
        sum(part.trained_tokens for part in parts),
    )
    for key in keys:
        _append([part.tokens_file(key) for part in parts], joined.tokens_file(key))
    return joined


def _append(sources: Sequence[Path], target: Path) -> None:
    """Append files to the first one, deleting them on the way, so that the disk holds the data only once."""
    sources[0].replace(target)
    with target.open("ab") as out:
        for source in sources[1:]:
            with source.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
            source.unlink()
