"""The manifest beside the output: what went in, what came out, and what did not. It is written last.

It depends only on the input and the options, not on workers, parts or time, so equal runs give equal bytes.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mindllm.errors import UserError

FORMAT_VERSION = 1


class TemplateRecord(NamedTuple):
    """What a manifest says of the template that its data was made with."""

    name: str
    end_tokens: list[str]  # that end an answer
    chat_template: str  # the template as jinja


_VERSIONS_OF = ("tokenizers", "transformers", "pyarrow", "numpy")


def manifest_path(prefix: str | Path) -> Path:
    """Path of the manifest of an output prefix."""
    return Path(f"{prefix}_manifest.json")


def columns_path(prefix: str | Path) -> Path:
    """Path of the parquet sidecar of an output prefix."""
    return Path(f"{prefix}_columns.parquet")


def journal_path(prefix: str | Path) -> Path:
    """Path of the journal that is there while a run puts its files in place; a split's is that of its run."""
    return Path(f"{prefix}.incomplete")


def describe_outputs(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Size and hash of every output file, by the end of its name that does not depend on the prefix."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": hash_file(path)} for path in paths}


def content_hash(outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """One hash of all outputs; equal data has equal hashes wherever it lies."""
    hashes = [str(outputs[name]["sha256"]) for name in sorted(outputs)]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def current_hash(prefix: str | Path) -> str:
    """The content hash of what lies under a prefix now.

    It is the manifest's for every file that is as long as recorded and not newer than the manifest, which is written
    last; neither by its own time, which copies and editors may set, nor by that of its last change of any kind. Another
    file is read and hashed, so that only other bytes give another hash.

    Raises:
        UserError: as `read_manifest`.
    """
    manifest, outputs = read_manifest(prefix), {}
    written = manifest_path(prefix).stat()
    for name, recorded in manifest["outputs"].items():
        path = _where_now(name, prefix, manifest["keys"])
        is_same = not path.is_file() or _is_as_recorded(path.stat(), recorded["bytes"], written)
        outputs[name] = recorded if is_same else {"sha256": hash_file(path)}
    return content_hash(outputs)


def _is_as_recorded(found: os.stat_result, size: int, written: os.stat_result) -> bool:
    is_newer = found.st_mtime_ns > written.st_mtime_ns or found.st_ctime_ns > written.st_ctime_ns
    return found.st_size == size and not is_newer


def _where_now(name: str, prefix: str | Path, keys: Sequence[str]) -> Path:
    """Path of an output that the manifest lists as `name`; the files may have been renamed together since."""
    endings = [f"_{key}_document.{suffix}" for key in sorted(keys, key=len, reverse=True) for suffix in ("bin", "idx")]
    ending = next((ending for ending in endings if name.endswith(ending)), "_columns.parquet")
    return Path(f"{prefix}{ending}")


def length_histogram(lengths: np.ndarray) -> dict[str, int]:
    """Samples by length, in bins that end at powers of two: {"<=64": 10, "<=128": 3}."""
    if not len(lengths):
        return {}
    bins = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    counts = np.bincount(bins)
    return {f"<={1 << power}": int(count) for power, count in enumerate(counts) if count}


def library_versions() -> dict[str, str]:
    """Versions of the libraries whose behaviour shows in the output."""
    return {name: version(name) for name in _VERSIONS_OF}


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, or of the names and hashes of all files in a directory."""
    if path.is_dir():
        listed = [f"{file.relative_to(path)} {hash_file(file)}" for file in files_below(path)]
        return hashlib.sha256("\n".join(listed).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(directory: Path) -> list[Path]:
    """All files in a directory, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def read_manifest(prefix: str | Path) -> dict[str, Any]:
    """The manifest of a prefix.

    Raises:
        UserError: missing or put in place only in part (the data was never completed), or damaged.
    """
    path = manifest_path(prefix)
    if not path.is_file():
        raise UserError(f"{path} does not exist; write data with preprocess_data.py --output-prefix {prefix}")
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict) or found.get("format_version") != FORMAT_VERSION:
        raise UserError(f"{path} is not a manifest of format version {FORMAT_VERSION}")
    split = found.get("split")
    journal = journal_path(str(prefix).removesuffix(f"_{split}") if split else prefix)
    if journal.exists():
        raise UserError(
            f"{prefix} is not complete: preprocess_data.py was killed at the very end ({journal}); run it again"
        )
    return found


def read_template_record(prefix: str | Path) -> TemplateRecord | None:
    """The template of a prefix; None where the data has none, no manifest, or one of an earlier version.

    Raises:
        UserError: as `read_manifest`.
    """
    found = read_manifest(prefix)["template"] if manifest_path(prefix).is_file() else None
    if not found or "end_tokens" not in found:
        return None
    return TemplateRecord(found["name"], found["end_tokens"], found["chat_template"])
