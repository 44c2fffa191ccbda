"""Data of older toolkits, which have `_packed` in their names and no manifest."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data import InstructionDataset, PromptDataset
from mindllm.data.indexed import indexed_path, write_index
from mindllm.errors import UserError


def write(prefix: Path, key: str, sequences: list[list[int]]) -> None:
    flat = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
    indexed_path(f"{prefix}_packed", key, "bin").write_bytes(flat.tobytes())
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    write_index(indexed_path(f"{prefix}_packed", key, "idx"), [lengths])


def test_examples_are_read_whether_they_are_packed_or_not(tmp_path: Path) -> None:
    write(tmp_path / "sft", "input_ids", [[5, 6, 7, 8, 9], [1, 2]])
    write(tmp_path / "sft", "labels", [[-100, 6, 7, -100, 9], [-100, 2]])
    plain = InstructionDataset(tmp_path / "sft")
    assert plain[0].labels.tolist() == [-100, 6, 7, -100, 9] and plain[0].segments.tolist() == [5]
    plain_hash = plain.content_hash
    write(tmp_path / "sft", "attention_mask", [[1, 1, 1, 2, 2], [1, 1]])
    packed = InstructionDataset(tmp_path / "sft")
    assert [packed[index].segments.tolist() for index in range(2)] == [[3, 2], [2]]
    assert packed[0].input_ids.tolist() == [5, 6, 7, 8, 9] and packed.content_hash != plain_hash


def test_prompts_are_read_with_the_columns_beside_them(tmp_path: Path) -> None:
    write(tmp_path / "rl", "input_ids", [[5, 6], [7]])
    with pytest.raises(UserError, match=r"rl_columns\.parquet does not exist"):
        PromptDataset(tmp_path / "rl")
    pq.write_table(pa.table({"labels": ["4", "6"]}), tmp_path / "rl_columns.parquet")
    prompts = PromptDataset(tmp_path / "rl")
    assert [prompts[index].input_ids.tolist() for index in range(2)] == [[5, 6], [7]]
    assert prompts[1].columns == {"labels": "6"}
    before = prompts.content_hash
    pq.write_table(pa.table({"labels": ["4", "5"]}), tmp_path / "rl_columns.parquet")
    assert PromptDataset(tmp_path / "rl").content_hash != before
