"""Dialogues for SFT: labels and lengths."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Encoded, HandlerOptions, build_handler, handler_class
from mindllm.preprocess.inputs.rows import Row

HANDLER = "AlpacaStyleInstructionHandler"
Encode = Callable[..., Encoded]
Decode = Callable[[Any], str]
THREE_TURNS = {"instruction": "third", "output": "three", "history": [["first", "one"], ["second", "two"]]}


def split(encoded: Encoded) -> list[tuple[np.ndarray, np.ndarray]]:
    borders = np.cumsum(encoded.lengths["input_ids"])[:-1]
    return list(
        zip(np.split(encoded.tokens["input_ids"], borders), np.split(encoded.tokens["labels"], borders), strict=True)
    )


def trained(encoded: Encoded, decode: Decode) -> list[str]:
    return [decode(labels[labels != -100]) for _, labels in split(encoded)]


@pytest.mark.parametrize("prompt_type", ["chatml", "qwen", "empty", "hf"])
@pytest.mark.parametrize(
    ("answer", "history"),
    [
        ("the quick brown fox", []),
        ("1 2 3", [["first", "one"], ["second", ""]]),
        ("emoji 😀👩‍👩‍👧 inside", [["👩‍👩‍👧", "🙂"]]),
        ("مرحبا بالعالم", [["שלום", "عربى"]]),
        ("several\n\nlines\n", []),
        ("tab\tand\r\nreturn", []),
        ("long " * 2000, []),
        ("decomposed e\u0301", []),
        ("says {content} and <tags>", [["{eos}", "{bos}"]]),
    ],
)
def test_the_trained_tokens_are_the_answers_and_their_end_tokens(
    encode: Encode, decode: Decode, prompt_type: str, answer: str, history: list[list[str]]
) -> None:
    row = {"instruction": "question?", "output": answer, "history": history}
    encoded = encode(HANDLER, row, prompt_type=prompt_type)
    expected = "".join(f"{text}<|im_end|>" for text in [*(turn[1] for turn in history), answer])
    assert trained(encoded, decode) == [expected.replace("e\u0301", "\u00e9")]  # the tokenizer composes characters


def test_labels_stand_at_their_own_tokens(encode: Encode) -> None:
    ((ids, labels),) = split(encode(HANDLER, THREE_TURNS))
    assert len(ids) == len(labels) and ids.dtype == labels.dtype == np.int32
    assert np.array_equal(ids[labels != -100], labels[labels != -100])
    assert encode(HANDLER, THREE_TURNS).trained_tokens == int((labels != -100).sum())


def test_answers_of_the_empty_template_are_encoded_apart_from_the_prompt(encode: Encode, decode: Decode) -> None:
    row = {"instruction": "the qu", "output": "ick"}
    ((ids, labels),) = split(encode(HANDLER, row, prompt_type="empty"))
    prompt = encode("PPOAlpacaStyleInstructionHandler", row, prompt_type="empty").tokens["input_ids"]
    assert np.array_equal(ids[: len(prompt)], prompt)
    assert decode(labels[len(prompt) :]) == "ick<|im_end|>"


@pytest.mark.parametrize(
    ("output", "reason"),
    [(None, "null_response"), ("", "empty_response"), (" \n", "empty_response"), (5, "response_not_text")],
)
def test_a_row_without_an_answer_is_dropped_and_counted(encode: Encode, output: Any, reason: str) -> None:
    encoded = encode(HANDLER, {"instruction": "a", "output": output}, {"instruction": "a", "output": "b"})
    assert encoded.dropped == {reason: 1} and len(encoded.lengths["input_ids"]) == 1


def test_long_dialogues_are_dropped_unless_told_otherwise(encode: Encode) -> None:
    encoded = encode(HANDLER, THREE_TURNS, {"instruction": "a", "output": "b"}, seq_length=20)
    assert encoded.dropped == {"too_long": 1} and len(encoded.lengths["input_ids"]) == 1


def test_truncation_keeps_whole_turns_that_fit(encode: Encode, decode: Decode) -> None:
    full = int(encode(HANDLER, THREE_TURNS).lengths["input_ids"][0])
    encoded = encode(HANDLER, THREE_TURNS, seq_length=full - 2, overlong="truncate")
    assert trained(encoded, decode) == ["one<|im_end|>two<|im_end|>"]
    assert decode(encoded.tokens["input_ids"]).endswith("two<|im_end|>")
    assert encoded.changed == {"dialogues_shortened": 1, "turns_removed": 1}


def test_a_dialogue_that_fits_but_for_the_white_space_after_it_loses_only_that(encode: Encode, decode: Decode) -> None:
    full = int(encode(HANDLER, THREE_TURNS).lengths["input_ids"][0])
    encoded = encode(HANDLER, THREE_TURNS, seq_length=full - 1, overlong="truncate")
    assert trained(encoded, decode) == ["one<|im_end|>two<|im_end|>three<|im_end|>"] and not +encoded.changed


def test_a_first_answer_that_does_not_fit_is_cut_and_gets_no_end_token(encode: Encode, decode: Decode) -> None:
    encoded = encode(HANDLER, {"instruction": "a", "output": "x" * 50}, seq_length=20, overlong="truncate")
    assert encoded.lengths["input_ids"].tolist() == [20] and encoded.changed == {"answers_cut": 1}
    assert set(trained(encoded, decode)[0]) == {"x"}


@pytest.mark.parametrize("seq_length", range(1, 60, 3))
def test_no_sample_is_without_a_trained_token(encode: Encode, seq_length: int) -> None:
    rows = [THREE_TURNS, {"instruction": "a" * 30, "output": "b" * 30}, {"instruction": "a", "output": "b"}]
    encoded = encode(HANDLER, *rows, seq_length=seq_length, overlong="truncate")
    assert all((labels != -100).any() and len(labels) <= seq_length for _, labels in split(encoded) if len(labels))
    assert len(encoded.lengths["input_ids"]) + sum(encoded.dropped.values()) == len(rows)


def test_a_long_dialogue_is_an_error_that_names_row_and_lengths_when_asked(encode: Encode) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:1: the dialogue has \d+ tokens, --seq-length allows 8"):
        encode(HANDLER, THREE_TURNS, seq_length=8, overlong="error")


def test_a_template_whose_markers_the_tokenizer_lacks_is_refused(spec: TokenizerSpec) -> None:
    from dataclasses import replace

    lacking = replace(spec, backend=spec.backend.replace("<|im_end|>", "<|other|>"))
    with pytest.raises(UserError, match=r"uses <\|im_end\|>, which is no token of the tokenizer"):
        build_handler(HandlerOptions(HANDLER, "chatml"), lacking).encode([Row("r", 1, THREE_TURNS)])


@pytest.mark.parametrize("map_keys", [{"prompt": ""}, {"prompt": "output"}, {"prompt": "q", "response": ""}])
def test_a_mapping_must_leave_columns_for_prompt_and_response(encode: Encode, map_keys: dict[str, str]) -> None:
    with pytest.raises(UserError, match="--map-keys leaves no column for '(prompt|response)'"):
        encode(HANDLER, map_keys=map_keys)


@pytest.mark.parametrize(
    ("handler", "map_keys", "required"),
    [
        (HANDLER, {}, ["instruction", "output"]),
        (HANDLER, {"prompt": "q"}, ["output", "q"]),
        (HANDLER, {"prompt": "q", "system": "s"}, ["output", "q", "s"]),
        ("PPOAlpacaStyleInstructionHandler", {"prompt": "q", "response": "a"}, ["q"]),
        ("SharegptStyleInstructionHandler", {"system": "s"}, ["conversations", "s"]),
        ("OpenAIInstructionHandler", {"messages": "m", "tools": ""}, ["m"]),
        ("SharegptStylePairwiseHandler", {"chosen": "a"}, ["a", "rejected"]),
        ("KTOHandler", {"label": "wanted"}, ["completion", "wanted"]),
        ("GeneralPretrainHandler", {"text": "body"}, ["body"]),
        ("AlpacaStyleProcessRewardHandler", {"value": "v"}, ["input", "v"]),
    ],
)
def test_required_columns_are_those_named_and_the_defaults_of_needed_roles(
    handler: str, map_keys: dict[str, str], required: list[str]
) -> None:
    assert sorted(handler_class(handler).required_columns(HandlerOptions(handler, map_keys=map_keys))) == required


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    "prompt", [[turn("user", "a"), turn("assistant", "b"), turn("user", "c")], "c"], ids=["turns", "text"]
)
@pytest.mark.parametrize(
    "completion", [[turn("assistant", "d")], turn("assistant", "d"), "d"], ids=["turns", "turn", "text"]
)
def test_the_completion_alone_is_trained_where_prompt_and_completion_are_turns(
    prompt: Any, completion: Any, encode: Encode, decode: Decode
) -> None:
    row = {"prompt": prompt, "completion": completion}
    encoded = encode(HANDLER, row, map_keys={"prompt": "prompt", "response": "completion"})
    assert trained(encoded, decode) == ["d<|im_end|>"]
    shown = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in prompt[:-1] if prompt != "c")
    expected = f"{shown}<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n"
    assert decode(encoded.tokens["input_ids"]) == expected


@pytest.mark.parametrize(
    "history",
    [
        json.dumps(THREE_TURNS["history"]),
        [turn("user", "first"), turn("assistant", "one"), turn("user", "second"), turn("assistant", "two")],
    ],
    ids=["JSON", "turns"],
)
def test_a_history_may_be_json_text_or_turns(history: Any, encode: Encode) -> None:
    encoded, expected = encode(HANDLER, {**THREE_TURNS, "history": history}), encode(HANDLER, THREE_TURNS)
    assert encoded.tokens["labels"].tolist() == expected.tokens["labels"].tolist()
    assert encode(HANDLER, {**THREE_TURNS, "history": "none"}).dropped == {"invalid_history": 1}


@pytest.mark.parametrize(
    ("handler", "row"),
    [
        (HANDLER, {"instruction": "a", "output": "b"}),
        ("PPOAlpacaStyleInstructionHandler", {"instruction": "a"}),
        ("AlpacaStylePairwiseHandler", {"instruction": "a", "chosen": "b", "rejected": "c"}),
        ("KTOHandler", {"prompt": "a", "completion": "b", "label": True}),
        ("AlpacaPretrainHandler", {"instruction": "a", "output": "b"}),
    ],
)
def test_a_column_of_tools_is_shown_or_refused(
    handler: str, row: dict[str, Any], encode: Encode, decode: Decode
) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    encoded = encode(handler, {**row, "tools": json.dumps([tool])}, prompt_type="qwen3")
    for key in {"text", "input_ids", "chosen_input_ids", "rejected_input_ids"} & encoded.tokens.keys():
        assert f"<tools>\n{json.dumps(tool)}\n</tools>" in decode(encoded.tokens[key])
    with pytest.raises(UserError, match="the template knows no tools"):
        encode(handler, {**row, "tools": [tool]})
