"""The quickstart's task, model directory and evaluation, each as its script writes it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow.parquet
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"


def load(name: str) -> ModuleType:
    """One script of the quickstart as a module."""
    spec = importlib.util.spec_from_file_location(f"quickstart_{name}", QUICKSTART / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("task")
    subprocess.run([sys.executable, QUICKSTART / "make_task.py", out, "--seed", "3"], check=True)
    return out


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, QUICKSTART / "make_model.py", out, "--seed", "3"], check=True)
    return out


def test_held_out_prompts_occur_in_no_training_file(task: Path):
    heldout = {row["prompt"] for row in read_jsonl(task / "rl_heldout.jsonl")}
    trained = {row["prompt"] for row in read_jsonl(task / "rl_train.jsonl")}
    shown = {row["instruction"] for row in read_jsonl(task / "sft.jsonl")}
    assert len(heldout) == 200 and not heldout & trained and not heldout & shown


def test_every_solution_is_the_sorted_prompt(task: Path):
    for row in read_jsonl(task / "rl_train.jsonl") + read_jsonl(task / "rl_heldout.jsonl"):
        assert "".join(sorted(row["prompt"].removeprefix("sort "))) == row["solution"]
    for row in read_jsonl(task / "sft.jsonl"):
        assert row["output"] == f"<answer>{''.join(sorted(row['instruction'].removeprefix('sort ')))}</answer>"


@pytest.mark.parametrize("name", ["rl_train", "rl_heldout"])
def test_parquet_and_jsonl_hold_the_same_rows(task: Path, name: str):
    assert pyarrow.parquet.read_table(task / f"{name}.parquet").to_pylist() == read_jsonl(task / f"{name}.jsonl")


def test_the_seed_alone_decides_the_task():
    make_rows = load("make_task").make_rows
    assert make_rows(1) == make_rows(1) != make_rows(2)


def test_the_tokenizer_gives_every_text_back_and_spells_digits_apart(model_dir: Path):
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    text = "<|im_start|>user\nsort 3141<|im_end|>\n<answer>1134</answer> déjà vu"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("sort 3141")[-4:] == ["3", "1", "4", "1"]


def test_answer_tags_survive_the_removal_of_special_tokens(model_dir: Path):
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    response = tokenizer("<answer>1134</answer><|im_end|>")["input_ids"]
    assert tokenizer.decode(response, skip_special_tokens=True) == "<answer>1134</answer>"


def test_the_model_has_the_promised_size_and_ends_turns_at_both_end_tokens(model_dir: Path):
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert 0.4e6 <= model.num_parameters() <= 4e6
    assert model.config.vocab_size == len(tokenizer)
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>1134</answer>", "1134"),
        ("<answer>1</answer> no: <answer> 1134 </answer>", "1134"),
        ("1134", None),
        ("<answer>1134", None),
    ],
)
def test_only_the_last_closed_answer_block_counts(response: str, answer: str | None):
    assert load("evaluate").last_answer(response) == answer
