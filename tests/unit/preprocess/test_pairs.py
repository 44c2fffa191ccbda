"""Pairs for reward models: two dialogues a row, of which only the last answer is labelled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindllm.data import InstructionDataset, PairwiseDataset
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Encoded
from mindllm.preprocess.run import PreprocessOptions, preprocess

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


SHAREGPT = "SharegptStylePairwiseHandler"
USER, ASSISTANT, SYSTEM, TOOL = (
    lambda text, role=role, **others: {"role": role, "content": text, **others}
    for role in ("user", "assistant", "system", "tool")
)
ASKED = [SYSTEM("Be brief."), USER("a"), ASSISTANT("b"), USER("Hi")]
SPOKEN = "\n\nHuman: a\n\nAssistant: b\n\nHuman: Hi\n\nAssistant:"  # as HH-RLHF has it
GOOD, BAD = [ASSISTANT("good one")], [ASSISTANT("bad")]


@pytest.mark.parametrize(
    ("handler", "row", "map_keys"),
    [
        (SHAREGPT, {"prompt": ASKED, "chosen": GOOD, "rejected": BAD}, {"messages": "prompt"}),
        (SHAREGPT, {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]}, None),
        (SHAREGPT, {"system": "Be brief.", "chosen": [*ASKED[1:], *GOOD], "rejected": [*ASKED[1:], *BAD]}, None),
        (SHAREGPT, {"conversations": ASKED, "chosen": [*ASKED, *GOOD], "rejected": BAD[0]}, None),
        (HANDLER, {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]}, None),
        (HANDLER, {"prompt": ASKED, "chosen": GOOD, "rejected": BAD}, {"prompt": "prompt"}),
        (HANDLER, {"prompt": "Hi", "chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]}, {"prompt": "prompt"}),
        (HANDLER, {**ROW, "chosen": GOOD, "rejected": BAD[0]}, None),
        (HANDLER, {**ROW, "chosen": [*ASKED[1:], *GOOD], "rejected": "bad"}, None),
        (HANDLER, {"chosen": json.dumps([*ASKED, *GOOD]), "rejected": json.dumps([*ASKED, *BAD])}, None),
        (HANDLER, {"chosen": [*ASKED, *GOOD], "rejected": "bad"}, None),
        (SHAREGPT, {"messages": [*ASKED, *GOOD], "worse": "bad"}, {"chosen": "messages", "rejected": "worse"}),
        (SHAREGPT, {"system": "Be brief.", "chosen": "good one", "rejected": [*ASKED[1:], *BAD]}, None),
        (HANDLER, {"system": "Be brief.", "chosen": SPOKEN + " good one", "rejected": SPOKEN + " bad"}, None),
        (HANDLER, {"instruction": json.dumps(ASKED), "chosen": "good one", "rejected": json.dumps(BAD)}, None),
    ],
)
def test_answers_may_be_lists_of_turns_that_repeat_their_prompt(
    encode: Encode, handler: str, row: dict[str, Any], map_keys: dict[str, str] | None
) -> None:
    encoded, expected = encode(handler, row, map_keys=map_keys), encode(HANDLER, ROW)
    assert not encoded.dropped
    for key, tokens in expected.tokens.items():
        assert encoded.tokens[key].tolist() == tokens.tolist()


@pytest.mark.parametrize(("margin", "number"), [("1.5", 1.5), ("", None), (None, None)])
def test_a_margin_may_be_text_as_in_csv(margin: Any, number: float | None, encode: Encode) -> None:
    assert encode(HANDLER, {**ROW, "margin": margin}).columns == [{"margin": number}]


def test_all_answers_after_the_common_turns_are_trained(encode: Encode, decode: Decode) -> None:
    more = [USER("And?"), ASSISTANT("more")]
    row = {"chosen": [*ASKED, *GOOD, *more], "rejected": [*ASKED, *BAD, *more]}
    encoded = encode(HANDLER, row)
    assert trained(encoded, "chosen_labels", decode) == "good one<|im_end|>more<|im_end|>"
    assert trained(encoded, "rejected_labels", decode) == "bad<|im_end|>more<|im_end|>"


def test_calls_of_tools_are_part_of_an_answer(encode: Encode, decode: Decode) -> None:
    call = ASSISTANT(None, tool_calls=[{"function": {"name": "add", "arguments": {"a": 1}}}])
    row = {"conversations": [USER("1 + 1?")], "chosen": [call, TOOL("2"), ASSISTANT("2")], "rejected": [ASSISTANT("3")]}
    encoded = encode(SHAREGPT, row, prompt_type="qwen")
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert trained(encoded, "chosen_labels", decode) == f"{called}2<|im_end|>"
    assert trained(encoded, "rejected_labels", decode) == "3<|im_end|>"


def test_an_answer_that_is_json_of_something_else_stays_text(encode: Encode, decode: Decode) -> None:
    encoded = encode(HANDLER, {**ROW, "chosen": '[{"name": "x"}]', "rejected": "[1, 2]"})
    assert trained(encoded, "chosen_labels", decode) == '[{"name": "x"}]<|im_end|>'
    assert trained(encoded, "rejected_labels", decode) == "[1, 2]<|im_end|>"


def test_an_answer_that_the_data_excludes_is_not_trained(encode: Encode, decode: Decode) -> None:
    more = [USER("And?"), ASSISTANT("more")]
    row = {"chosen": [*ASKED, ASSISTANT("good one", weight=0), *more], "rejected": [*ASKED, *BAD, *more]}
    assert trained(encode(HANDLER, row), "chosen_labels", decode) == "more<|im_end|>"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rejected": [USER("Bye"), *BAD]}, "chosen_and_rejected_have_different_prompts"),
        ({"rejected": [*ASKED, *GOOD]}, "chosen_equals_rejected"),
        ({"rejected": [*ASKED, *GOOD, USER("And?"), ASSISTANT("more")]}, "nothing_to_train"),
        ({"rejected": ASKED}, "rejected_not_an_answer"),
        ({"chosen": GOOD, "rejected": BAD}, "null_prompt"),
        ({"instruction": "Bye"}, "chosen_has_another_prompt"),
        ({"instruction": [USER("Hi"), ASSISTANT("a")]}, "no_final_user_turn"),
        ({"rejected": [*ASKED, USER("a"), *BAD]}, "consecutive_roles"),
    ],
)
def test_lists_of_turns_that_are_no_pair_are_dropped(encode: Encode, change: dict[str, Any], reason: str) -> None:
    row = {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]}
    encoded = encode(HANDLER, row, {**row, **change})
    assert encoded.dropped == {reason: 1} and len(encoded.kept) == 1


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
