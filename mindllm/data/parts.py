"""Parts of an output: written one by one, and merged as streams."""

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mindllm.data.handlers import Encoded
from mindllm.data.indexed import indexed_path, write_index
from mindllm.data.manifest import columns_path
from mindllm.data.sidecar import Spool, write_sidecar

ID_KEYS = ("input_ids", "text")  # ends of the names of keys that hold text; the others annotate it


@dataclass
class Part:
    """What a part's files hold. Lengths stay in memory: 4 bytes a sample and key."""

    directory: Path
    lengths: dict[str, list[np.ndarray]] = field(default_factory=dict)
    rows_in: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    trained_tokens: int = 0

    def add(self, encoded: Encoded) -> None:
        """Count another batch."""
        for key, lengths in encoded.lengths.items():
            self.lengths.setdefault(key, []).append(lengths)
        self.rows_in += encoded.rows_in
        self.dropped += encoded.dropped
        self.changed += encoded.changed
        self.trained_tokens += encoded.trained_tokens

    @property
    def num_samples(self) -> int:
        """Samples written so far."""
        return sum(len(lengths) for lengths in next(iter(self.lengths.values()), []))

    def sample_lengths(self) -> np.ndarray:
        """Tokens of every sample (of both dialogues of a pair together), int64 [num_samples]."""
        ids = [np.concatenate(lengths) for key, lengths in self.lengths.items() if key.endswith(ID_KEYS)]
        return np.stack(ids).sum(axis=0, dtype=np.int64)

    def tokens_file(self, key: str) -> Path:
        """Where the tokens of an output key lie."""
        return self.directory / f"{key}.tokens"

    @property
    def spool_file(self) -> Path:
        """Where the extra columns lie."""
        return self.directory / "columns.spool"


def write_part(directory: Path, keys: Sequence[str], batches: Iterable[Encoded]) -> Part:
    """Write batches, in order, to the files of a part."""
    directory.mkdir()
    part = Part(directory)
    with ExitStack() as stack:
        files = {key: stack.enter_context(part.tokens_file(key).open("wb")) for key in keys}
        spool = Spool(stack.enter_context(part.spool_file.open("wb")))
        for batch in batches:
            for key, file in files.items():
                file.write(batch.tokens[key].astype("<i4").data)
            spool.append(batch.columns)
            part.add(batch)
    return part


@dataclass
class Merged:
    """All parts as one output."""

    counts: Part
    files: list[Path]
    null_cells: dict[str, int]


def merge_parts(parts: Sequence[Part], prefix: Path, keys: Sequence[str], keeps_columns: bool) -> Merged:
    """Merge parts, in order, into indexed files and sidecar under `prefix`; the parts' files are used up."""
    total = Part(prefix.parent)
    for part in parts:
        for key, lengths in part.lengths.items():
            total.lengths.setdefault(key, []).extend(lengths)
        total.rows_in += part.rows_in
        total.dropped += part.dropped
        total.changed += part.changed
        total.trained_tokens += part.trained_tokens
    files = []
    for key in keys:
        tokens, index = indexed_path(prefix, key, "bin"), indexed_path(prefix, key, "idx")
        _join([part.tokens_file(key) for part in parts], tokens)
        write_index(index, total.lengths[key])
        files += [tokens, index]
    null_cells: dict[str, int] = {}
    if keeps_columns:
        null_cells = write_sidecar(columns_path(prefix), [part.spool_file for part in parts])
        files.append(columns_path(prefix))
    return Merged(total, files, null_cells)


def _join(sources: Sequence[Path], target: Path) -> None:
    """Append files to the first one, deleting them on the way, so that the disk holds the data only once."""
    sources[0].replace(target)
    with target.open("ab") as out:
        for source in sources[1:]:
            with source.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
            source.unlink()
