"""ShareGPT and OpenAI conversations: roles, order, tools, columns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Encoded, HandlerOptions, build_handler
from mindllm.preprocess.inputs.readers import find_inputs
from mindllm.preprocess.inputs.rows import Row

SFT, PPO = "SharegptStyleInstructionHandler", "PPOSharegptStyleInstructionHandler"
R1 = "R1SharegptStyleInstructionHandler"
PAIRS, OPENAI = "SharegptStylePairwiseHandler", "OpenAIInstructionHandler"
Encode = Callable[..., Encoded]
Decode = Callable[[Any], str]
HUMAN, GPT, SYSTEM = (lambda text, role=role: {"from": role, "value": text} for role in ("human", "gpt", "system"))
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def trained(encoded: Encoded, decode: Decode) -> str:
    labels = encoded.tokens["labels"]
    return decode(labels[labels != -100])


def test_a_sharegpt_conversation_becomes_a_dialogue(encode: Encode, decode: Decode) -> None:
    row = {"conversations": [SYSTEM("Be brief."), HUMAN("a"), GPT("1"), HUMAN("b"), GPT("2")]}
    encoded = encode(SFT, row)
    assert decode(encoded.tokens["input_ids"]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
    )
    assert trained(encoded, decode) == "1<|im_end|>2<|im_end|>"


def test_only_the_last_answer_is_trained_without_history(encode: Encode, decode: Decode) -> None:
    row = {"conversations": [HUMAN("a"), GPT("1"), HUMAN("b"), GPT("2")]}
    assert trained(encode(SFT, row, train_on_history=False), decode) == "2<|im_end|>"


def test_a_system_column_is_used_unless_the_conversation_has_its_own(encode: Encode, decode: Decode) -> None:
    for turns, expected in [([], "column"), ([SYSTEM("turn")], "turn")]:
        row = {"conversations": [*turns, HUMAN("a"), GPT("1")], "system": "column"}
        assert decode(encode(SFT, row).tokens["input_ids"]).startswith(f"<|im_start|>system\n{expected}<|im_end|>")


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        (None, "null_messages"),
        ("text", "messages_not_a_list"),
        (["text"], "turn_not_an_object"),
        ([HUMAN("a"), {"from": "robot", "value": "b"}], "unknown_role"),
        ([HUMAN("a"), {"value": "b"}], "unknown_role"),
        ([HUMAN("a"), {"from": ["gpt"], "value": "b"}], "unknown_role"),
        ([HUMAN("a"), HUMAN("b"), GPT("c")], "consecutive_roles"),
        ([HUMAN("a"), GPT("b"), GPT("c")], "consecutive_roles"),
        ([GPT("a"), HUMAN("b"), GPT("c")], "invalid_role_order"),
        ([HUMAN("a"), SYSTEM("b"), GPT("c")], "invalid_role_order"),
        ([SYSTEM("a")], "no_user_turn"),
        ([], "no_user_turn"),
        ([HUMAN("a"), GPT("b"), HUMAN("c")], "no_final_answer"),
        ([HUMAN("a"), GPT(" ")], "empty_response"),
        ([HUMAN("a"), GPT(7)], "content_not_text"),
        ([HUMAN("a\ud800"), GPT("b")], "content_not_unicode"),
        ([HUMAN("a"), {"from": "function_call", "value": "no json"}], "invalid_tool_call"),
        ([HUMAN("a"), {"from": "function_call", "value": '{"arguments": {}}'}], "invalid_tool_call"),
        ([HUMAN("a"), {"from": "function_call", "value": '{"name": "x", "arguments": [1]}'}], "invalid_tool_call"),
        ([HUMAN("a"), {"from": "function_call", "value": ""}], "invalid_tool_call"),
        ([{"from": "observation", "value": "b"}, HUMAN("a"), GPT("c")], "invalid_role_order"),
        ([HUMAN(None), GPT("b")], "null_content"),
        ([HUMAN([{"type": "image", "image": "x.png"}]), GPT("b")], "content_not_text"),
        ([{"human": "a", "user": "b", "assistant": "c"}], "two_texts_of_one_role"),
    ],
)
def test_an_invalid_conversation_is_dropped_and_counted(encode: Encode, turns: Any, reason: str) -> None:
    good = {"conversations": [HUMAN("a"), GPT("1")]}
    encoded = encode(SFT, {"conversations": turns}, good)
    assert encoded.dropped == {reason: 1} and len(encoded.kept) == 1


def test_a_prompt_is_the_whole_conversation_up_to_the_last_user_turn(encode: Encode, decode: Decode) -> None:
    row = {"conversations": [HUMAN("a"), GPT("1"), HUMAN("b"), GPT("2")], "level": 3}
    encoded = encode(PPO, row)
    assert decode(encoded.tokens["input_ids"]) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )
    turns = [("user", "a"), ("assistant", "1"), ("user", "b")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert encoded.columns == [{"level": 3, "prompt": "b", "prompt_messages": messages}]


def test_the_answer_of_an_r1_row_is_kept_as_labels(encode: Encode) -> None:
    row = {"conversations": [HUMAN("a"), GPT("1")], "level": 3, "other": 4}
    assert encode(R1, row).columns == [{"labels": "1", "prompt": "a"}]
    keys = ("labels", "level")
    assert encode(R1, row, dataset_additional_keys=keys).columns == [{"labels": "1", "level": 3, "prompt": "a"}]
    assert encode(R1, {**row, "labels": "own"}).columns == [{"labels": "own", "prompt": "a"}]
    assert encode(R1, {**row, "labels": None}).columns == [{"labels": "1", "prompt": "a"}]
    alpaca = {"question": "a", "solution": "1"}
    mapping = {"prompt": "question", "response": "solution"}
    for solution, label in (("1", "1"), (1, "1"), (0.5, "0.5"), ([GPT("1")], "1")):
        row = {**alpaca, "solution": solution}
        encoded = encode("R1AlpacaStyleInstructionHandler", row, map_keys=mapping)
        assert encoded.columns == [{"labels": label, "prompt": "a"}]


def test_a_prompt_that_ends_with_the_result_of_a_tool_is_whole(encode: Encode, decode: Decode) -> None:
    call = {"from": "function_call", "value": json.dumps(CALL)}
    turns = [HUMAN("a"), call, {"from": "observation", "value": "3"}]
    shown = decode(encode(PPO, {"conversations": turns}, prompt_type="qwen").tokens["input_ids"])
    assert CALL_TEXT in shown and shown.endswith("3\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_pairs_answer_the_same_conversation(encode: Encode, decode: Decode) -> None:
    row = {"conversations": [HUMAN("a")], "chosen": GPT("good"), "rejected": "bad", "margin": 1}
    encoded = encode(PAIRS, row)
    assert decode(encoded.tokens["chosen_input_ids"]).endswith("assistant\ngood<|im_end|>\n")
    assert decode(encoded.tokens["rejected_input_ids"]).endswith("assistant\nbad<|im_end|>\n")
    assert encoded.columns == [{"margin": 1.0}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"conversations": [HUMAN("a"), GPT("b")]}, "no_final_user_turn"),
        ({"chosen": None}, "null_chosen"),
        ({"chosen": HUMAN("a")}, "chosen_not_an_answer"),
        ({"rejected": GPT("")}, "empty_rejected"),
        ({"rejected": 3}, "rejected_not_text"),
        ({"rejected": [3]}, "turn_not_an_object"),
        ({"rejected": []}, "empty_rejected"),
        ({"rejected": [GPT("a"), HUMAN("b")]}, "rejected_not_an_answer"),
        ({"rejected": [GPT("a"), GPT("b")]}, "consecutive_roles"),
        ({"rejected": [HUMAN("other"), GPT("bad")]}, "rejected_has_another_prompt"),
        ({"conversations": None}, "null_messages"),
        ({"rejected": GPT("good")}, "chosen_equals_rejected"),
    ],
)
def test_a_row_that_is_no_pair_is_dropped(encode: Encode, change: dict[str, Any], reason: str) -> None:
    row = {"conversations": [HUMAN("a")], "chosen": GPT("good"), "rejected": GPT("bad")}
    assert encode(PAIRS, {**row, **change}).dropped == {reason: 1}


@pytest.mark.parametrize("arguments", [CALL["arguments"], json.dumps(CALL["arguments"])])
def test_openai_tool_calls_are_trained_and_their_results_are_not(
    encode: Encode, decode: Decode, arguments: Any
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "It is 3."},
    ]
    encoded = encode(OPENAI, {"messages": messages, "tools": [TOOL]}, prompt_type="qwen")
    text = decode(encoded.tokens["input_ids"])
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert (
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>" in text
    )
    assert trained(encoded, decode) == f"{CALL_TEXT}\n{CALL_TEXT}<|im_end|>It is 3.<|im_end|>"


def test_sharegpt_function_calls_and_observations_are_tool_calls(encode: Encode, decode: Decode) -> None:
    turns = [HUMAN("a"), {"from": "function_call", "value": json.dumps(CALL)}, {"from": "observation", "value": "3"}]
    row = {"conversations": [*turns, GPT("3")], "tools": json.dumps([TOOL])}
    assert trained(encode(SFT, row, prompt_type="qwen"), decode) == f"{CALL_TEXT}<|im_end|>3<|im_end|>"
    for tools in ("[3]", {"add": {"parameters": {}}}):
        assert encode(SFT, {**row, "tools": tools}, prompt_type="qwen").dropped == {"invalid_tools": 1}


def ask(question: str, name: str, arguments: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    """A row that calls a tool; each has another tool, so that a table's schema has the keys of all."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "content": "done"},
            {"role": "assistant", "content": "Done."},
        ],
        "tools": [{"type": "function", "function": {"name": name, "parameters": parameters}}],
    }


CALLS = [
    ask("a", "add", {"a": 1, "b": 2}, {"a": {"type": "integer"}, "b": {"type": "integer"}}),
    ask("b", "find", {"where": {"city": "Rome"}}, {"where": {"type": "object", "description": "a place"}}),
    ask(
        "c", "list", {"where": {"zip": "1"}, "names": ["x"]}, {"names": {"type": "array", "items": {"type": "string"}}}
    ),
]


@pytest.mark.parametrize("name", ["calls.parquet", "calls.arrow", "saved"])
def test_calls_and_schemas_of_a_table_have_only_the_keys_of_their_row(
    name: str, tmp_path: Path, spec: TokenizerSpec
) -> None:
    path, table = tmp_path / name, pa.Table.from_pylist(CALLS)
    assert table.to_pylist() != CALLS, "the table fills keys up"
    if name == "saved":
        datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
        datasets.Dataset.from_list(CALLS).save_to_disk(str(path))
    elif name.endswith(".parquet"):
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    handler = build_handler(HandlerOptions(OPENAI, "qwen"), spec)
    encoded = handler.encode(list(find_inputs([str(path)]).rows(0, len(CALLS))))
    expected = handler.encode([Row("rows.jsonl", number, values) for number, values in enumerate(CALLS, 1)])
    assert not encoded.dropped
    assert encoded.tokens["input_ids"].tolist() == expected.tokens["input_ids"].tolist()
    assert encoded.tokens["labels"].tolist() == expected.tokens["labels"].tolist()


def test_a_null_that_a_json_row_writes_out_stays(encode: Encode, decode: Decode) -> None:
    row = ask("a", "add", {"a": None}, {"a": {"type": "integer", "default": None}})
    text = decode(encode(OPENAI, row, prompt_type="qwen").tokens["input_ids"])
    assert '"arguments": {"a": null}' in text and '"default": null' in text


def test_a_template_without_tools_refuses_them(encode: Encode) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [TOOL]}
    with pytest.raises(UserError, match=r"rows\.jsonl:1: the template knows no tools; use --prompt-type hf or qwen3"):
        encode(OPENAI, row)


def test_columns_and_the_names_within_turns_can_be_mapped(encode: Encode, decode: Decode) -> None:
    tags = {"role_tag": "who", "content_tag": "says", "user_tag": "me", "assistant_tag": "it"}
    row = {"chat": [{"who": "me", "says": "a"}, {"who": "it", "says": "1"}], "system": "Be brief."}
    for system, expected in [({}, True), ({"system": ""}, False)]:
        encoded = encode(SFT, row, map_keys={"messages": "chat", "tags": tags, **system})
        assert trained(encoded, decode) == "1<|im_end|>"
        assert ("Be brief." in decode(encoded.tokens["input_ids"])) is expected


@pytest.mark.parametrize(
    ("map_keys", "message"),
    [
        ({"message": "chat"}, "unknown key 'message'; .*; did you mean 'messages'"),
        ({"tags": {"role": "who"}}, "unknown tag 'role'; .*; did you mean 'role_tag'"),
        ({"tags": "who"}, "'tags' must be an object"),
        ({"messages": ["chat"]}, "'messages' must be a column name"),
        ({"messages": ""}, "leaves no column for 'messages'"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(encode: Encode, map_keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode(SFT, map_keys=map_keys)
