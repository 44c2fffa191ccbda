"""The PPO quickstart's task and tokenizer, each as its script writes it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reviews")
    subprocess.run([sys.executable, QUICKSTART / "make_reviews.py", out, "--seed", "3"], check=True)
    return out


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(QUICKSTART))
    from positive_share import positive_share

    return lambda text: positive_share([text], prompts=["any"])[0]


def read_jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_held_out_prompts_occur_in_no_training_file(task: Path):
    heldout = {row["prompt"] for row in read_jsonl(task / "rl_heldout.jsonl")}
    trained = {row["prompt"] for row in read_jsonl(task / "rl_train.jsonl")}
    shown = {row["instruction"] for name in ("sft", "pairs_train") for row in read_jsonl(task / f"{name}.jsonl")}
    judged = {row["instruction"] for row in read_jsonl(task / "pairs_heldout.jsonl")}
    assert len(heldout) == 128 and judged <= heldout and not heldout & (trained | shown)


def test_the_chosen_review_of_every_pair_is_the_more_positive_one(task: Path, share):
    for name in ("train", "heldout"):
        pairs = read_jsonl(task / f"pairs_{name}.jsonl")
        assert pairs and all(share(pair["chosen"]) > share(pair["rejected"]) for pair in pairs)


def test_reviews_of_the_sft_data_blame_more_than_they_praise(task: Path, share):
    shares = [share(row["output"]) for row in read_jsonl(task / "sft.jsonl")]
    assert 0.35 < sum(shares) / len(shares) < 0.45


@pytest.mark.parametrize(
    ("review", "expected"),
    [("the plot is superb but the cast is very dull", 0.5), ("the plot is warm", 1.0), ("", 0.0), ("superbly", 0.0)],
)
def test_the_positive_share_counts_whole_words_of_opinion(share, review: str, expected: float):
    assert share(review) == expected


def test_every_word_is_one_token_and_texts_come_back(task: Path, tmp_path: Path):
    words = task / "words.txt"
    subprocess.run([sys.executable, QUICKSTART / "make_model.py", tmp_path, "--words", words], check=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for row in read_jsonl(task / "sft.jsonl")[:50]:
        for text in row.values():
            ids = tokenizer(text)["input_ids"]
            assert len(ids) == len(text.split()) and tokenizer.decode(ids) == text
