"""Prompts for RL."""

from collections.abc import Callable
from typing import Any

import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Encoded, HandlerOptions, build_handler
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import TextEncoder

HANDLER = "PPOAlpacaStyleInstructionHandler"
Encode = Callable[..., Encoded]
Decode = Callable[[Any], str]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
HEADER = "<|im_start|>assistant\n"


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def test_a_prompt_only_mapping_works_and_extra_columns_are_kept(encode: Encode, decode: Decode) -> None:
    row = {"question": "sort 3 1", "solution": "1 3", "level": 2}
    encoded = encode(HANDLER, row, map_keys={"prompt": "question"})
    assert decode(encoded.tokens["input_ids"]) == user("sort 3 1") + HEADER
    assert encoded.columns == [{"solution": "1 3", "level": 2, "prompt": "sort 3 1"}]


@pytest.mark.parametrize(
    "map_keys",
    [
        {"prompt": "prompt", "query": "", "response": "prompt", "system": ""},
        {"prompt": "prompt", "response": "answer"},
    ],
)
def test_the_older_mapping_of_the_response_works(encode: Encode, decode: Decode, map_keys: dict[str, str]) -> None:
    encoded = encode(HANDLER, {"prompt": "sort 3 1", "answer": "1 3"}, map_keys=map_keys)
    assert decode(encoded.tokens["input_ids"]) == user("sort 3 1") + HEADER
    assert encoded.columns == [{"prompt": "sort 3 1", "answer": "1 3"}]


def test_a_prompt_may_be_a_list_of_turns(encode: Encode, decode: Decode) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "sort 3 1"}]
    encoded = encode(HANDLER, {"prompt": turns, "system": "not used", "answer": "1 3"}, map_keys={"prompt": "prompt"})
    text = f"<|im_start|>system\nBe brief.<|im_end|>\n{user('sort 3 1')}{HEADER}"
    assert decode(encoded.tokens["input_ids"]) == text
    assert encoded.columns == [{"answer": "1 3", "prompt": "sort 3 1", "prompt_messages": turns}]


def test_an_empty_response_drops_nothing(encode: Encode) -> None:
    encoded = encode(HANDLER, {"instruction": "Hi", "input": "", "output": ""}, {"instruction": "Hi", "output": None})
    assert len(encoded.lengths["input_ids"]) == 2 and not encoded.dropped


def test_a_multi_turn_prompt_is_the_whole_conversation_templated_once(encode: Encode, decode: Decode) -> None:
    row = {"instruction": "third", "input": "more", "system": "Be brief.", "history": [["first", "1"], ["second", "2"]]}
    assert decode(encode(HANDLER, row).tokens["input_ids"]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        + user("first") + f"{HEADER}1<|im_end|>\n" + user("second") + f"{HEADER}2<|im_end|>\n"
        + user("third\nmore") + HEADER
    )  # fmt: skip


def test_the_turns_of_a_prompt_that_is_more_than_a_question_are_kept(encode: Encode) -> None:
    row = {"instruction": "second", "system": "Be brief.", "history": [["first", "1"]]}
    encoded = encode(HANDLER, row, {"instruction": "alone"})
    assert encoded.columns == [
        {
            "prompt": "second",
            "prompt_messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": "1"},
                {"role": "user", "content": "second"},
            ],
        },
        {"prompt": "alone"},
    ]


def test_calls_reasoning_and_tools_of_a_prompt_are_kept(encode: Encode) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    called = {"role": "assistant", "content": None, "reasoning_content": "sum", "tool_calls": [CALL]}
    turns = [
        {"role": "user", "content": "a"},
        called,
        {"role": "tool", "content": "3", "name": "add"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "b"},
    ]
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    mapping = {"messages": "messages", "tags": {**tags, "observation_tag": "tool"}}
    encoded = encode(
        "PPOSharegptStyleInstructionHandler",
        {"messages": turns, "tools": [tool]},
        prompt_type="qwen3",
        map_keys=mapping,
    )
    (columns,) = encoded.columns
    assert columns["prompt"] == "b" and columns["prompt_tools"] == [tool]
    assert columns["prompt_messages"] == [{**turn, "content": turn["content"] or ""} for turn in turns]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": None}, "null_prompt"),
        ({"output": "x"}, "null_prompt"),
        ({"instruction": " \n"}, "empty_prompt"),
        ({"instruction": 7}, "prompt_not_text"),
        ({"instruction": ["a"]}, "prompt_not_text"),
        ({"instruction": "a\ud800"}, "prompt_not_unicode"),
        ({"instruction": "a", "input": 7}, "query_not_text"),
        ({"instruction": "a", "system": 7}, "system_not_text"),
        ({"instruction": "a", "history": "b"}, "invalid_history"),
        ({"instruction": "a", "history": [["b"]]}, "invalid_history"),
        ({"instruction": "a", "history": [["b", None]]}, "invalid_history"),
    ],
)
def test_a_row_without_a_valid_conversation_is_dropped_and_counted(
    encode: Encode, row: dict[str, Any], reason: str
) -> None:
    encoded = encode(HANDLER, row, {"instruction": "fine"}, row)
    assert encoded.dropped == {reason: 2} and len(encoded.lengths["input_ids"]) == 1 and encoded.rows_in == 3


def test_long_prompts_are_dropped_unless_told_otherwise(encode: Encode) -> None:
    short, long = {"instruction": "Hi"}, {"instruction": "Hi " * 50}
    limit = int(encode(HANDLER, short).lengths["input_ids"][0])
    encoded = encode(HANDLER, short, long, seq_length=limit)
    assert encoded.lengths["input_ids"].tolist() == [limit] and encoded.dropped == {"prompt_too_long": 1}
    assert len(encoded.columns) == 1


def test_a_cut_prompt_keeps_its_end_and_so_the_assistant_header(encode: Encode, decode: Decode) -> None:
    encoded = encode(HANDLER, {"instruction": "x" * 50 + " the end"}, seq_length=16, prompt_overlong="left")
    assert encoded.lengths["input_ids"].tolist() == [16] and encoded.changed == {"prompt_cut_left": 1}
    assert decode(encoded.tokens["input_ids"]).endswith(f" the end<|im_end|>\n{HEADER}")


def test_a_cut_prompt_keeps_its_single_bos(bos_spec: TokenizerSpec) -> None:
    options = HandlerOptions(HANDLER, "llama3", seq_length=20, prompt_overlong="left")
    ids = build_handler(options, bos_spec).encode([Row("r", 1, {"instruction": "x" * 99})]).tokens["input_ids"].tolist()
    bos = TextEncoder(bos_spec).token_id("<|begin_of_text|>")
    assert ids[0] == bos and ids.count(bos) == 1 and len(ids) == 20


def test_a_long_prompt_is_an_error_that_names_row_and_lengths_when_asked(encode: Encode) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:2: the prompt has \d+ tokens, --seq-length allows 30"):
        encode(HANDLER, {"instruction": "Hi"}, {"instruction": "x" * 99}, seq_length=30, prompt_overlong="error")


def test_an_unmapped_prompt_column_is_refused_because_its_name_is_taken(encode: Encode) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl:1: column 'prompt' is not part of the prompt"):
        encode(HANDLER, {"instruction": "Hi", "prompt": "other"})


@pytest.mark.parametrize("handler", [HANDLER, "R1AlpacaStyleInstructionHandler", "AlpacaStyleInstructionHandler"])
def test_columns_that_the_mapping_does_not_name_are_read_by_default(
    encode: Encode, decode: Decode, handler: str
) -> None:
    row = {"question": "third", "input": "more", "system": "Be brief.", "history": [["first", "1"]], "output": "3"}
    earlier = f"<|im_start|>system\nBe brief.<|im_end|>\n{user('first')}{HEADER}1<|im_end|>\n"
    prompt = earlier + user("third\nmore") + HEADER
    assert decode(encode(handler, row, map_keys={"prompt": "question"}).tokens["input_ids"]).startswith(prompt)
    removed = {"prompt": "question", "system": "", "query": "", "history": ""}
    assert decode(encode(handler, row, map_keys=removed).tokens["input_ids"]).startswith(user("third") + HEADER)


def test_a_removed_column_is_kept_for_the_rewards(encode: Encode) -> None:
    row = {"question": "a", "system": "s", "input": "i"}
    kept = encode(HANDLER, row, map_keys={"prompt": "question", "system": ""}).columns
    assert kept == [{"system": "s", "prompt": "a\ni"}]


def test_a_column_is_not_read_twice_because_it_is_another_roles_default(encode: Encode, decode: Decode) -> None:
    encoded = encode(HANDLER, {"input": "a", "output": "b"}, map_keys={"prompt": "input"})
    assert decode(encoded.tokens["input_ids"]) == user("a") + HEADER and encoded.columns == [
        {"output": "b", "prompt": "a"}
    ]


def test_an_unknown_mapping_key_gets_a_suggestion(encode: Encode) -> None:
    with pytest.raises(
        UserError,
        match="unknown key 'promt'; known are prompt, .*; did you mean 'prompt'",
    ):
        encode(HANDLER, map_keys={"promt": "question"})
