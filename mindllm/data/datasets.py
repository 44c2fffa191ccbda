"""Indexed data as the trainer reads it: prompts for RL, examples for SFT, pairs for reward models."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.data.indexed import IndexedReader
from mindllm.data.manifest import columns_path, current_hash, read_manifest
from mindllm.data.older_naming import hash_older, older_prefix, open_older_masks, run_lengths
from mindllm.data.sidecar import MESSAGES_COLUMN, PROMPT_COLUMN, TOOLS_COLUMN, blank_rows, list_columns, read_rows
from mindllm.errors import UserError, did_you_mean
from mindllm.templates.messages import as_text

_MARGIN_COLUMN = "margin"


@dataclass(frozen=True)
class Prompt:
    """A templated prompt and the columns its rewards need; `columns["prompt"]` is the text of the last question."""

    index: int
    input_ids: np.ndarray  # int32 [length]
    columns: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation, in the form that chat templates read."""
        return self.columns.get(MESSAGES_COLUMN) or [{"role": "user", "content": self.columns.get(PROMPT_COLUMN, "")}]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return self.columns.get(TOOLS_COLUMN) or []

    @property
    def text(self) -> str:
        """The whole conversation as `as_text` writes it."""
        return as_text(self.messages)


@dataclass(frozen=True)
class Example:
    """One or, in packed data, several dialogues; a label stands at its token's own position, -100 = not trained."""

    index: int
    input_ids: np.ndarray  # int32 [length]
    labels: np.ndarray  # int32 [length]
    packed: np.ndarray | None = None  # int32 [num_segments], lengths of packed dialogues; None = one dialogue

    @property
    def segments(self) -> np.ndarray:
        """Lengths of the dialogues, which must not see each other, int32 [num_segments]; adds up to the length.

        Where packing kept no boundaries, the whole row is one segment.
        """
        return self.packed if self.packed is not None else np.array([len(self.input_ids)], dtype=np.int32)


@dataclass(frozen=True)
class Pair:
    """A prompt with two answers, as two dialogues; only the answer is labelled, at its tokens' own positions.

    `margin` says by how much the chosen answer is better; 0 where the data does not say.
    """

    index: int
    chosen: np.ndarray  # int32 [chosen length]
    chosen_labels: np.ndarray  # int32 [chosen length]
    rejected: np.ndarray  # int32 [rejected length]
    rejected_labels: np.ndarray  # int32 [rejected length]
    margin: float


class PromptDataset:
    """Prompts written by a PPO handler.

    Attributes:
        columns: names of the columns every prompt carries.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Open and check the files.

        Raises:
            UserError: a file is missing or damaged, or this is not prompt data.
        """
        self._prefix, older = prefix, older_prefix(prefix)
        if older is None:
            read_manifest(prefix)
        self._ids = IndexedReader(older or prefix, "input_ids")
        self._columns_file = columns_path(prefix)
        if not self._columns_file.is_file():
            raise UserError(f"{self._columns_file} does not exist: {prefix} was not written by a prompt handler")
        self.columns = self._check_columns()

    @cached_property
    def content_hash(self) -> str:
        """Equal for equal data, wherever it lies."""
        return _content_hash(self._prefix)

    @cached_property
    def list_columns(self) -> list[str]:
        """Names of the columns in which a cell is a list, or the text of a JSON list."""
        return list_columns(self._table)

    def blank_rows(self, column: str) -> np.ndarray:
        """Numbers of the prompts with blank text, an empty list or NaN in a column, int64; not of those with null."""
        return blank_rows(self._table, column)

    @property
    def lengths(self) -> np.ndarray:
        """Prompt lengths, int32 [num_prompts]."""
        return self._ids.lengths

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Prompt:
        """Prompt `index`, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return Prompt(index, self._ids[index], read_rows(self._table.slice(index, 1))[0])

    def _check_columns(self) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self._columns_file) as file:
                rows, names = file.metadata.num_rows, list(file.schema_arrow.names)
        except pa.ArrowException as error:
            raise UserError(f"{self._columns_file} is damaged: {error}") from error
        if rows != len(self):
            raise UserError(f"{self._columns_file} has {rows} rows for {len(self)} prompts")
        return names

    @cached_property
    def _table(self) -> Any:
        import pyarrow.parquet as pq

        return pq.read_table(self._columns_file)


class InstructionDataset:
    """Examples written by an instruction handler."""

    def __init__(self, prefix: str | Path) -> None:
        """Open and check the files.

        Raises:
            UserError: a file is missing or damaged, or there are no labels.
        """
        self._prefix, older = prefix, older_prefix(prefix)
        if older is None:
            manifest = read_manifest(prefix)
            if "labels" not in manifest["keys"]:
                handler = manifest["options"]["handler"]
                raise UserError(f"{prefix} has no labels: it was written by {handler}, not for SFT")
            self._segments = IndexedReader(prefix, "segments") if "segments" in manifest["keys"] else None
        else:
            self._segments = None
        self._ids, self._labels = _open_labelled(older or prefix, "input_ids", "labels")
        self._masks = open_older_masks(older) if older is not None else None
        self._check_segments(prefix)

    @cached_property
    def content_hash(self) -> str:
        """Equal for equal data, wherever it lies."""
        return _content_hash(self._prefix)

    @property
    def lengths(self) -> np.ndarray:
        """Example lengths, int32 [num_examples]."""
        return self._ids.lengths

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Example:
        """Example `index`, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        return Example(index, self._ids[index], self._labels[index], self._segments_of(index))

    def _segments_of(self, index: int) -> np.ndarray | None:
        if self._segments is not None:
            return self._segments[index]
        if self._masks is not None:
            return run_lengths(self._masks[index])
        return None

    def _check_segments(self, prefix: str | Path) -> None:
        if self._segments is not None and len(self._segments) != len(self):
            raise UserError(f"{prefix} has segments of {len(self._segments)} rows for {len(self)} rows")


class PairwiseDataset:
    """Pairs written by a pairwise handler.

    Attributes:
        lengths: of the longer dialogue of each pair, int32 [num_pairs].
        has_margins: whether any pair has a margin.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Open and check the files.

        Raises:
            UserError: a file is missing or damaged, or this is not pairwise data.
        """
        manifest = read_manifest(prefix)
        if "chosen_input_ids" not in manifest["keys"]:
            raise UserError(f"{prefix} has no pairs: it was written by {manifest['options']['handler']}")
        self._prefix = prefix
        self._chosen, self._chosen_labels = _open_labelled(prefix, "chosen_input_ids", "chosen_labels")
        self._rejected, self._rejected_labels = _open_labelled(prefix, "rejected_input_ids", "rejected_labels")
        if len(self._chosen) != len(self._rejected):
            raise UserError(f"{prefix} has {len(self._chosen)} chosen and {len(self._rejected)} rejected dialogues")
        self.lengths = np.maximum(self._chosen.lengths, self._rejected.lengths)
        self._margins = _read_margins(columns_path(prefix), len(self))
        self.has_margins = self._margins is not None

    @cached_property
    def content_hash(self) -> str:
        """Equal for equal data, wherever it lies."""
        return _content_hash(self._prefix)

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Pair:
        """Pair `index`, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return Pair(
            index,
            self._chosen[index],
            self._chosen_labels[index],
            self._rejected[index],
            self._rejected_labels[index],
            float(self._margins[index]) if self._margins is not None else 0.0,
        )


def _content_hash(prefix: str | Path) -> str:
    return current_hash(prefix) if older_prefix(prefix) is None else hash_older(prefix)


def _open_labelled(prefix: str | Path, ids_key: str, labels_key: str) -> tuple[IndexedReader, IndexedReader]:
    ids, labels = IndexedReader(prefix, ids_key), IndexedReader(prefix, labels_key)
    if not np.array_equal(ids.lengths, labels.lengths):
        raise UserError(f"{prefix}: {ids_key} and {labels_key} have different lengths; write the data again")
    return ids, labels


def _read_margins(path: Path, num_pairs: int) -> np.ndarray | None:
    """Margins as float64 [num_pairs], 0 for null; None when there is not one."""
    if not path.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        margins = pq.read_table(path, columns=[_MARGIN_COLUMN])[_MARGIN_COLUMN]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if len(margins) != num_pairs:
        raise UserError(f"{path} has {len(margins)} rows for {num_pairs} pairs")
    if margins.null_count == len(margins):
        return None
    return np.array(margins.fill_null(0.0), dtype=np.float64)


def open_prompts(prefix: str | Path, required_columns: Sequence[str] = ()) -> PromptDataset:
    """Open prompts and check that the columns the rewards need are there.

    Raises:
        UserError: as `PromptDataset`, or a column is missing.
    """
    prompts = PromptDataset(prefix)
    for column in required_columns:
        if column not in prompts.columns:
            hint = did_you_mean(column, prompts.columns)
            raise UserError(f"{prefix} has no column '{column}'; columns are {', '.join(prompts.columns)}{hint}")
    return prompts


def open_instructions(prefix: str | Path) -> InstructionDataset:
    """Open SFT examples.

    Raises:
        UserError: as `InstructionDataset`.
    """
    return InstructionDataset(prefix)
