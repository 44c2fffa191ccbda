"""Indexed data as the trainer reads it: prompts for RL, examples for SFT."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mindllm.data.indexed import IndexedReader
from mindllm.data.manifest import columns_path, read_manifest
from mindllm.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Prompt:
    """A templated prompt and the columns its rewards need; `columns["prompt"]` is the raw prompt text."""

    index: int
    input_ids: np.ndarray  # int32 [length]
    columns: dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A dialogue; the label of a token stands at the token's own position, -100 = not trained."""

    index: int
    input_ids: np.ndarray  # int32 [length]
    labels: np.ndarray  # int32 [length]


class PromptDataset:
    """Prompts written by a PPO handler.

    Attributes:
        columns: names of the columns every prompt carries.
        content_hash: equal for equal data, wherever it lies.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Open and check the files.

        Raises:
            UserError: a file is missing or damaged, or this is not prompt data.
        """
        self.content_hash = str(read_manifest(prefix)["content_hash"])
        self._ids = IndexedReader(prefix, "input_ids")
        self._columns_file = columns_path(prefix)
        if not self._columns_file.is_file():
            raise UserError(f"{self._columns_file} does not exist: {prefix} was not written by a prompt handler")
        self.columns = self._check_columns()

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
        return Prompt(index, self._ids[index], self._table.slice(index, 1).to_pylist()[0])

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
    """Examples written by an instruction handler.

    Attributes:
        content_hash: equal for equal data, wherever it lies.
    """

    def __init__(self, prefix: str | Path) -> None:
        """Open and check the files.

        Raises:
            UserError: a file is missing or damaged, or there are no labels.
        """
        manifest = read_manifest(prefix)
        if not any(name.endswith("_labels_document.bin") for name in manifest["outputs"]):
            raise UserError(f"{prefix} has no labels: it was written by {manifest['options']['handler']}, not for SFT")
        self.content_hash = str(manifest["content_hash"])
        self._ids = IndexedReader(prefix, "input_ids")
        self._labels = IndexedReader(prefix, "labels")
        if not np.array_equal(self._ids.lengths, self._labels.lengths):
            raise UserError(f"{prefix}: input_ids and labels have different lengths; write the data again")

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
        return Example(index, self._ids[index], self._labels[index])


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
