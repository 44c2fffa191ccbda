"""Pairs for reward models: two dialogues a row, of which only the last answer is labelled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindllm.data import InstructionDataset, PairwiseDataset
from mindllm.data.handlers import Encoded
from mindllm.data.preprocess import PreprocessOptions, preprocess
from mindllm.errors import UserError

HANDLER = "AlpacaStylePairwiseHandler"
ROW = {"instruction": "Hi", "history": [["a", "b"]], "system": "Be brief.", "chosen": "good one", "rejected": "bad"}
Encode = Callable[..., Encoded]
Decode = Callable[[Any], str]


def trained(encoded: Encoded, key: str, decode: Decode) -> str:
    labels = encoded.tokens[key]
    return decode(labels[labels != -100])


def test_each_side_is_the_whole_dialogue_and_only_its_last_answer_is_labelled(encode: Encode, decode: Decode) -> None:
    encoded = encode(HANDLER, ROW)
    prompt = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    for side, answer in (("chosen", "good one<|im_end|>"), ("rejected", "bad<|im_end|>")):
        assert decode(encoded.tokens[f"{side}_input_ids"]) == f"{prompt}{answer}\n"
        assert trained(encoded, f"{side}_labels", decode) == answer
    labels = (encoded.tokens["chosen_labels"], encoded.tokens["rejected_labels"])
    assert encoded.trained_tokens == sum(int((side != -100).sum()) for side in labels)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chosen": None}, "null_chosen"),
        ({"rejected": " "}, "empty_rejected"),
        ({"rejected": 3}, "rejected_not_text"),
        ({"rejected": "good one"}, "chosen_equals_rejected"),
        ({"margin": "much"}, "margin_not_a_number"),
        ({"margin": float("nan")}, "margin_not_a_number"),
        ({"instruction": None}, "null_prompt"),
        ({"history": "b"}, "invalid_history"),
    ],
)
def test_a_row_that_is_no_pair_is_dropped_and_counted(encode: Encode, change: dict[str, Any], reason: str) -> None:
    encoded = encode(HANDLER, ROW, {**ROW, **change}, {**ROW, "margin": 2})
    assert encoded.dropped == {reason: 1} and encoded.columns == [{"margin": None}, {"margin": 2.0}]
    assert {len(lengths) for lengths in encoded.lengths.values()} == {2}


def test_a_pair_is_dropped_whole_when_one_side_is_too_long(encode: Encode) -> None:
    limit = int(encode(HANDLER, ROW).lengths["chosen_input_ids"][0])
    encoded = encode(HANDLER, ROW, {**ROW, "rejected": "x" * 99}, seq_length=limit)
    assert encoded.dropped == {"too_long": 1} and len(encoded.lengths["chosen_input_ids"]) == 1


def test_truncation_cuts_the_answers_and_drops_pairs_that_become_equal(encode: Encode, decode: Decode) -> None:
    rows = [{**ROW, "rejected": "x" * 99}, {**ROW, "chosen": "x" * 99 + "a", "rejected": "x" * 99 + "b"}]
    limit = int(encode(HANDLER, ROW).lengths["chosen_input_ids"][0])
    encoded = encode(HANDLER, *rows, seq_length=limit, overlong="truncate")
    assert encoded.dropped == {"chosen_equals_rejected": 1} and encoded.lengths["rejected_labels"].tolist() == [limit]
    assert set(trained(encoded, "rejected_labels", decode)) == {"x"}


def test_other_columns_can_be_mapped(encode: Encode, decode: Decode) -> None:
    row = {"q": "Hi", "good": "yes", "rejected": "no"}
    encoded = encode(HANDLER, row, map_keys={"prompt": "q", "chosen": "good"})
    assert trained(encoded, "chosen_labels", decode) == "yes<|im_end|>"


@pytest.mark.parametrize(
    ("map_keys", "message"),
    [
        ({"prompt": "q", "rejected": ""}, "leaves no column for 'rejected'"),
        ({"prompt": "q", "response": "a"}, "unknown key 'response'; known are prompt, .*, chosen, rejected"),
    ],
)
def test_a_mapping_without_both_answers_is_refused(encode: Encode, map_keys: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode(HANDLER, map_keys=map_keys)


def write(write_jsonl: Callable[..., Path], tokenizer: Path, prefix: Path, margins: list[float | None]) -> None:
    rows = [{"instruction": f"Hi {n}", "chosen": "yes" * n, "rejected": "n"} for n in range(1, len(margins) + 1)]
    for row, margin in zip(rows, margins, strict=True):
        row.update({} if margin is None else {"margin": margin})
    preprocess(PreprocessOptions([str(write_jsonl(rows))], prefix, tokenizer, HANDLER, n_subs=2))


def test_pairs_are_read_back(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path, decode: Decode
) -> None:
    write(write_jsonl, tokenizer_dir, tmp_path / "a", [None, 0.5, None])
    pairs = PairwiseDataset(tmp_path / "a")
    assert len(pairs) == 3 and pairs.has_margins and [pair.margin for pair in (pairs[0], pairs[1])] == [0.0, 0.5]
    pair = pairs[2]
    assert pair.index == 2 and pairs.lengths[2] == len(pair.chosen) > len(pair.rejected) == len(pair.rejected_labels)
    assert pair.chosen.dtype == pair.rejected_labels.dtype == np.int32
    assert decode(pair.chosen_labels[pair.chosen_labels != -100]) == "yesyesyes<|im_end|>"
    with pytest.raises(IndexError):
        pairs[3]


def test_data_without_margins_says_so(write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path) -> None:
    write(write_jsonl, tokenizer_dir, tmp_path / "a", [None, None])
    write(write_jsonl, tokenizer_dir, tmp_path / "b", [None, None])
    pairs = PairwiseDataset(tmp_path / "a")
    assert not pairs.has_margins and pairs[0].margin == 0.0
    assert len({PairwiseDataset(tmp_path / name).content_hash for name in "ab"}) == 1


def test_pairs_are_no_examples_and_examples_no_pairs(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path
) -> None:
    write(write_jsonl, tokenizer_dir, tmp_path / "pairs", [None])
    with pytest.raises(UserError, match="has no labels: it was written by AlpacaStylePairwiseHandler"):
        InstructionDataset(tmp_path / "pairs")
    data = write_jsonl([{"instruction": "a", "output": "b"}])
    preprocess(PreprocessOptions([str(data)], tmp_path / "sft", tokenizer_dir, "AlpacaStyleInstructionHandler"))
    with pytest.raises(UserError, match="has no pairs: it was written by AlpacaStyleInstructionHandler"):
        PairwiseDataset(tmp_path / "sft")
