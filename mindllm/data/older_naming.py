"""Data of older toolkits: `{prefix}_packed_{key}_document`, without a manifest, packed or not."""

import hashlib
from glob import escape
from pathlib import Path

import numpy as np

from mindllm.data.indexed import IndexedReader, indexed_path
from mindllm.data.manifest import columns_path, hash_file, manifest_path


def older_prefix(prefix: str | Path) -> Path | None:
    """The prefix with `_packed`, when data of that name is there and none of ours is."""
    older = Path(f"{prefix}_packed")
    is_there = indexed_path(older, "input_ids", "idx").is_file() and not manifest_path(prefix).is_file()
    return older if is_there else None


def hash_older(prefix: str | Path) -> str:
    """A content hash of data that has no manifest to say it: of all its files. `prefix` is without `_packed`."""
    older = Path(f"{prefix}_packed")
    files = sorted(older.parent.glob(f"{escape(older.name)}_*_document.*"))
    files += [path for path in [columns_path(prefix)] if path.is_file()]
    return hashlib.sha256("\n".join(hash_file(file) for file in files).encode()).hexdigest()


def open_older_masks(prefix: Path) -> IndexedReader | None:
    """Attention masks, which number the samples of a packed row (1 1 1 2 2); None where there are none."""
    return IndexedReader(prefix, "attention_mask") if indexed_path(prefix, "attention_mask", "idx").is_file() else None


def run_lengths(numbers: np.ndarray) -> np.ndarray:
    """Lengths of runs of equal numbers, int32 [num_runs]: [1 1 1 2 2] -> [3 2]."""
    borders = np.flatnonzero(np.diff(numbers)) + 1
    return np.diff([0, *borders, len(numbers)]).astype(np.int32)
