"""Indexed data as the trainer reads it."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data import InstructionDataset, Prompt, PromptDataset, open_instructions, open_prompts
from mindllm.errors import UserError
from mindllm.preprocess.run import PreprocessOptions, preprocess

Write = Callable[..., Path]


def make_prompts(write_jsonl: Write, tokenizer: Path, prefix: Path, rows: int = 3) -> Path:
    data = write_jsonl([{"question": f"sort {n}", "solution": [str(n)], "meta": {"n": n}} for n in range(rows)])
    preprocess(
        PreprocessOptions(
            [str(data)], prefix, tokenizer, "PPOAlpacaStyleInstructionHandler", map_keys={"prompt": "question"}
        )
    )
    return prefix


@pytest.fixture
def prompts(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> Path:
    return make_prompts(write_jsonl, tokenizer_dir, tmp_path / "rl")


@pytest.fixture
def examples(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> Path:
    data = write_jsonl([{"instruction": "a", "output": "b" * n} for n in range(1, 4)])
    preprocess(PreprocessOptions([str(data)], tmp_path / "sft", tokenizer_dir, "AlpacaStyleInstructionHandler"))
    return tmp_path / "sft"


def test_prompts_carry_ids_and_columns(prompts: Path, decode: Callable[..., str]) -> None:
    dataset = PromptDataset(prompts)
    assert len(dataset) == 3 and dataset.columns == ["solution", "meta", "prompt"]
    assert dataset.list_columns == ["solution"]
    prompt = dataset[2]
    assert prompt.index == 2 and prompt.input_ids.dtype == np.int32 and len(prompt.input_ids) == dataset.lengths[2]
    assert decode(prompt.input_ids) == "<|im_start|>user\nsort 2<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.columns == {"solution": ["2"], "meta": {"n": 2}, "prompt": "sort 2"}


def test_a_prompt_is_its_whole_conversation(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    history = {"instruction": "and 2?", "system": "Count on.", "history": [["1?", "2"]]}
    source, prefix = str(write_jsonl([history, {"instruction": "1?"}])), tmp_path / "rl"
    preprocess(PreprocessOptions([source], prefix, tokenizer_dir, "PPOAlpacaStyleInstructionHandler"))
    whole, alone = PromptDataset(prefix)[0], PromptDataset(prefix)[1]
    assert whole.text == "system: Count on.\n\nuser: 1?\n\nassistant: 2\n\nuser: and 2?"
    assert [turn["role"] for turn in whole.messages] == ["system", "user", "assistant", "user"]
    assert alone.text == "1?" and alone.messages == [{"role": "user", "content": "1?"}] and not alone.tools
    assert (whole.columns["prompt"], alone.columns["prompt"]) == ("and 2?", "1?")


def test_calls_are_part_of_a_conversations_text() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": "é"}}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
    ]
    written = '{"name": "add", "arguments": {"a": "é"}}'
    prompt = Prompt(0, np.zeros(1, np.int32), {"prompt": "a", "prompt_messages": turns})
    assert prompt.text == f"user: a\n\nassistant: Let me see.\n{written}\n\nassistant: {written}\n{written}"


def test_examples_carry_ids_and_labels(examples: Path) -> None:
    dataset = InstructionDataset(examples)
    example = dataset[1]
    assert len(dataset) == 3 and example.index == 1 and example.labels.dtype == np.int32
    assert -100 in example.labels and len(example.labels) == len(example.input_ids) == dataset.lengths[1]
    assert np.array_equal(example.labels[example.labels != -100], example.input_ids[example.labels != -100])


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_is_an_index_error(prompts: Path, index: int) -> None:
    with pytest.raises(IndexError):
        PromptDataset(prompts)[index]


def test_equal_data_has_an_equal_hash_wherever_it_lies(
    prompts: Path, write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    same = make_prompts(write_jsonl, tokenizer_dir, tmp_path / "elsewhere" / "copy")
    other = make_prompts(write_jsonl, tokenizer_dir, tmp_path / "other", rows=4)
    hashes = [PromptDataset(prefix).content_hash for prefix in (prompts, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_hash_is_that_of_the_files_and_not_of_their_names_or_times(prompts: Path, tmp_path: Path) -> None:
    before = PromptDataset(prompts).content_hash
    for file in tmp_path.glob("rl_*"):
        shutil.copyfile(file, tmp_path / file.name.replace("rl_", "renamed_"))  # with a new time
    os.utime(tmp_path / "renamed_manifest.json", ns=(0, 0))
    assert PromptDataset(tmp_path / "renamed").content_hash == before


def test_columns_edited_after_preprocessing_change_the_hash(prompts: Path) -> None:
    before = PromptDataset(prompts).content_hash
    table = pq.read_table(f"{prompts}_columns.parquet")
    pq.write_table(table.set_column(0, "solution", pa.array(["2", "1", "0"])), f"{prompts}_columns.parquet")
    os.utime(f"{prompts}_columns.parquet", ns=(1 << 62, 1 << 62))
    edited = PromptDataset(prompts)
    assert edited[0].columns["solution"] == "2" and edited.content_hash != before


def test_tokens_edited_in_place_change_the_hash(examples: Path) -> None:
    before, path = InstructionDataset(examples).content_hash, Path(f"{examples}_labels_document.bin")
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(1 << 62, 1 << 62))
    assert InstructionDataset(examples).content_hash != before


def test_an_edit_that_keeps_the_time_of_a_file_changes_the_hash(examples: Path) -> None:
    before, path = InstructionDataset(examples).content_hash, Path(f"{examples}_labels_document.bin")
    time.sleep(0.05)  # the clock of a file system has steps
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(0, 0))
    assert InstructionDataset(examples).content_hash != before


def test_a_column_the_rewards_need_is_checked(prompts: Path) -> None:
    assert open_prompts(prompts, ["solution"]).columns
    with pytest.raises(UserError, match="no column 'solutions'; columns are solution, .*; did you mean 'solution'"):
        open_prompts(prompts, ["solutions"])


def test_the_wrong_kind_of_data_is_refused(prompts: Path, examples: Path) -> None:
    with pytest.raises(UserError, match="has no labels: it was written by PPOAlpacaStyleInstructionHandler"):
        open_instructions(prompts)
    with pytest.raises(UserError, match="was not written by a prompt handler"):
        open_prompts(examples)


def test_data_without_a_manifest_was_never_completed(prompts: Path) -> None:
    Path(f"{prompts}_manifest.json").unlink()
    with pytest.raises(UserError, match=r"rl_manifest\.json does not exist; write data with preprocess_data\.py"):
        PromptDataset(prompts)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is damaged"), ('{"format_version": 99}', "not a manifest of format version 1")]
)
def test_a_damaged_manifest_is_named(prompts: Path, content: str, message: str) -> None:
    Path(f"{prompts}_manifest.json").write_text(content)
    with pytest.raises(UserError, match=message):
        PromptDataset(prompts)


def test_a_damaged_sidecar_is_named(prompts: Path) -> None:
    sidecar = Path(f"{prompts}_columns.parquet")
    sidecar.write_bytes(sidecar.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"rl_columns\.parquet is damaged"):
        PromptDataset(prompts)


def test_files_of_different_data_under_one_prefix_are_refused(
    prompts: Path, examples: Path, write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    other = make_prompts(write_jsonl, tokenizer_dir, tmp_path / "other", rows=4)
    shutil.copy(f"{other}_columns.parquet", f"{prompts}_columns.parquet")
    with pytest.raises(UserError, match="has 4 rows for 3 prompts"):
        PromptDataset(prompts)
    for suffix in ("bin", "idx"):
        shutil.copy(f"{other}_input_ids_document.{suffix}", f"{examples}_labels_document.{suffix}")
    with pytest.raises(UserError, match="input_ids and labels have different lengths"):
        InstructionDataset(examples)


def test_the_manifest_counts_and_describes_everything(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    rows = [
        {"instruction": "a", "output": "b"},
        {"instruction": None, "output": "b"},
        {"instruction": "a", "output": ""},
    ]
    data = write_jsonl([*rows, rows[0]])
    preprocess(PreprocessOptions([str(data)], tmp_path / "sft", tokenizer_dir, "AlpacaStyleInstructionHandler"))
    manifest = json.loads((tmp_path / "sft_manifest.json").read_text())
    lengths = InstructionDataset(tmp_path / "sft").lengths
    assert manifest["rows"] == {"in": 4, "written": 2, "dropped": {"empty_response": 1, "null_prompt": 1}}
    assert manifest["tokens"]["total"] == lengths.sum() and manifest["tokens"]["trained"] == 4
    assert sum(manifest["length_histogram"].values()) == 2
    assert manifest["inputs"][0]["bytes"] == data.stat().st_size and manifest["inputs"][0]["rows"] == 4
    assert {len(entry["sha256"]) for entry in manifest["outputs"].values()} == {64}
    assert manifest["template"]["name"] == "hf" and manifest["options"]["overlong"] == "drop"
    assert set(manifest["versions"]) == {"numpy", "pyarrow", "tokenizers", "transformers"}
