"""The ways in which data sets write turns: all of a turn is read, or the row is refused in words."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mindllm.data.tokenizer import TokenizerSpec, load_tokenizer
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Encoded, HandlerOptions, build_handler
from mindllm.preprocess.inputs.rows import Row

SHAREGPT, OPENAI = "SharegptStyleInstructionHandler", "OpenAIInstructionHandler"
PPO = "PPOSharegptStyleInstructionHandler"
Encode = Callable[..., Encoded]
Decode = Callable[[Any], str]
TOOL = {"name": "look", "description": "Looks", "parameters": {"type": "object"}}
SCHEMA = {"name": "look", "description": "Looks", "input_schema": {"type": "object"}}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def answer(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def trained(encoded: Encoded, decode: Decode) -> str:
    labels = encoded.tokens["labels"]
    return decode(labels[labels != -100])


def text(*turns: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_in_a_field_of_its_own_is_trained(field: str, encode: Encode, decode: Decode) -> None:
    row = {"messages": [user("a"), answer("four", **{field: "two and two"})]}
    expected = "<think>\ntwo and two\n</think>\n\nfour<|im_end|>"
    assert trained(encode(OPENAI, row, prompt_type="qwen3"), decode) == expected
    parts = [{"type": "thinking", "thinking": "two and two"}, {"type": "text", "text": "four"}]
    assert trained(encode(OPENAI, {"messages": [user("a"), answer(parts)]}, prompt_type="qwen3"), decode) == expected


def test_reasoning_under_several_names_is_the_one_that_says_something(encode: Encode, decode: Decode) -> None:
    for fields in ({"reasoning_content": "", "reasoning": "why"}, {"reasoning_content": "why", "reasoning": "why"}):
        encoded = encode(OPENAI, {"messages": [user("a"), answer("b", **fields)]}, prompt_type="qwen3")
        assert trained(encoded, decode) == "<think>\nwhy\n</think>\n\nb<|im_end|>"
    both = {"messages": [user("a"), answer("b", reasoning_content="why", thinking="how")]}
    assert encode(OPENAI, both, prompt_type="qwen3").dropped == {"two_reasonings": 1}


STRIPPING = (  # earlier answers lose their reasoning
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("prompt_type", ["qwen3", "hf"])
@pytest.mark.parametrize("said", [answer("one", reasoning_content="why"), answer("<think>\nwhy\n</think>\n\none")])
def test_earlier_answers_that_are_trained_without_their_reasoning_are_counted(
    prompt_type: str, said: dict[str, Any], spec: TokenizerSpec
) -> None:
    def changed(*turns: dict[str, Any], **options: Any) -> dict[str, int]:
        given = HandlerOptions(OPENAI, prompt_type, **options)
        handler = build_handler(given, replace(spec, chat_template=STRIPPING))
        encoded = handler.encode([Row("r", 1, {"messages": list(turns)})])
        assert not encoded.dropped
        return dict(encoded.changed)

    more = (user("b"), answer("two"))
    assert changed(user("a"), said, *more, *more) == {"reasoning_left_out": 1}
    assert changed(user("a"), said) == changed(user("a"), {**said, "weight": 0}, *more) == {}
    assert changed(user("a"), said, *more, train_on_history=False) == changed(user("a"), answer("one"), *more) == {}


@pytest.mark.parametrize("prompt_type", ["chatml", "hf"])
def test_reasoning_that_a_template_cannot_show_is_refused(prompt_type: str, encode: Encode) -> None:
    row = {"messages": [user("a"), answer("b", reasoning_content="c")]}
    with pytest.raises(UserError, match=r"rows\.jsonl:1: the .*template shows no reasoning, .*; --on-bad-row skip"):
        encode(OPENAI, row, prompt_type=prompt_type)
    silent = {"messages": [user("a"), answer("b", reasoning_content="", thinking=None)]}
    assert not encode(OPENAI, silent, prompt_type=prompt_type).dropped


@pytest.mark.parametrize(
    "no",
    [
        {name: no}
        for name, no in (("weight", 0), ("loss", False), ("loss_weight", 0.0), ("train", False), ("loss_mask", 0))
    ],
)
def test_an_answer_marked_as_not_to_be_trained_is_not(no: dict[str, Any], encode: Encode, decode: Decode) -> None:
    (name,) = no
    turns = [user("a"), answer("wrong", **no), user("b", weight=0), answer("right", **{name: 1}), user("c")]
    row = {"messages": [*turns, answer("fine", **{name: None})]}
    encoded = encode(OPENAI, row)
    assert trained(encoded, decode) == "right<|im_end|>fine<|im_end|>"
    assert "assistant\nwrong<|im_end|>" in decode(encoded.tokens["input_ids"])
    sharegpt = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "wrong", **no}]
    assert encode(SHAREGPT, {"conversations": sharegpt}).dropped == {"nothing_to_train": 1}
    assert encode(OPENAI, {"messages": turns[:2]}, train_on_history=False).dropped == {"nothing_to_train": 1}


@pytest.mark.parametrize("weight", [0.5, 2, "0"])
def test_a_weight_between_trained_and_not_is_refused(weight: Any, encode: Encode) -> None:
    row = {"messages": [user("a"), answer("b", weight=weight)]}
    with pytest.raises(UserError, match=rf"rows\.jsonl:1: an answer has weight {weight!r}; it is trained \(1, true\)"):
        encode(OPENAI, row)
    good = {"messages": [user("a"), answer("b", weight=1.0)]}
    encoded = encode(OPENAI, row, good, on_bad_row="skip")
    assert encoded.dropped == {"weight_not_0_or_1": 1} and encoded.kept.tolist() == [1]


@pytest.mark.parametrize(
    "unclear", [{"train_detail": [{"end_offset": 0, "train": False}]}, {"mask": 1}, {"masked": False}]
)
def test_a_weight_of_unclear_meaning_is_refused(unclear: dict[str, Any], encode: Encode) -> None:
    row = {"messages": [user("a"), answer("b", **unclear)]}
    with pytest.raises(UserError, match=r"rows\.jsonl:1: an answer has \w+ .*, which is not read; write train"):
        encode(OPENAI, row)
    assert encode(OPENAI, row, on_bad_row="skip").dropped == {"unclear_weight": 1}
    silent = {"messages": [user("a", mask=1), answer("b", train_detail=[], mask=None)]}
    assert not encode(OPENAI, silent).dropped


@pytest.mark.parametrize(
    "turns",
    [
        [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        [{"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}],
        [{"from": "Human", "value": "a"}, {"from": "GPT", "value": "b"}],
        [{"from": "human", "text": "a"}, {"from": "model", "text": "b"}],
        [user("a"), answer("b")],
        [user([{"type": "text", "text": "a"}]), answer([{"type": "text", "text": "b", "image_url": None}])],
        [user(["a"]), answer([{"type": "output_text", "text": "b"}])],
        [{"human": "a", "assistant": "b"}],
        [{"user": "a", "assistant": "b", "id": 7}],
        [{"human": "a"}, {"gpt": "b"}],
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("handler", [SHAREGPT, OPENAI])
def test_turns_of_plain_meaning_are_read(handler: str, turns: list[Any], encode: Encode, decode: Decode) -> None:
    column = "messages" if handler == OPENAI else "conversations"
    for value in (turns, json.dumps(turns)):
        encoded = encode(handler, {column: value})
        assert decode(encoded.tokens["input_ids"]) == text(("user", "a"), ("assistant", "b"))
        assert trained(encoded, decode) == "b<|im_end|>"


def test_exchanges_keep_system_prompt_weights_and_a_last_open_question(encode: Encode, decode: Decode) -> None:
    turns = [
        {"system": "s", "human": "a", "assistant": "1", "loss": False},
        {"human": "b", "assistant": "2"},
        {"human": "c", "assistant": None},
    ]
    assert trained(encode(SHAREGPT, {"conversations": turns[:2]}), decode) == "2<|im_end|>"
    asked = decode(encode(PPO, {"conversations": turns}).tokens["input_ids"])
    dialogue = [("system", "s"), ("user", "a"), ("assistant", "1"), ("user", "b"), ("assistant", "2"), ("user", "c")]
    assert asked == text(*dialogue) + "<|im_start|>assistant\n"


def test_tags_of_the_users_own_go_before_common_names(encode: Encode, decode: Decode) -> None:
    swapped = {"tags": {"user_tag": "gpt", "assistant_tag": "human"}}
    row = {"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}]}
    assert trained(encode(SHAREGPT, row, map_keys=swapped), decode) == "b<|im_end|>"


@pytest.mark.parametrize("role", ["tool", "observation", "function", "ipython"])
def test_the_result_of_a_tool_may_follow_a_question(role: str, encode: Encode, decode: Decode) -> None:
    turns = [user("a"), {"role": role, "content": "7"}, answer("seven")]
    encoded = encode(OPENAI, {"messages": turns}, prompt_type="qwen3", thinking=False)
    shown = text(("user", "a"), ("user", "<tool_response>\n7\n</tool_response>"))
    assert decode(encoded.tokens["input_ids"]).startswith(shown) and trained(encoded, decode) == "seven<|im_end|>"


@pytest.mark.parametrize(
    "turn",
    [answer(None, tool_calls=[{"function": {"name": "look", "arguments": arguments}}]) for arguments in ("", None, {})]
    + [
        answer("", tool_calls=[{"id": "1", "function": {"name": "look"}}]),
        answer("", tool_calls='[{"name": "look", "arguments": "{}"}]'),
        answer(None, function_call={"name": "look", "arguments": "{}"}),
        {"from": "function_call", "value": '{"name": "look"}'},
        {"from": "tool_call", "value": [{"name": "look", "parameters": {}}]},
    ],
    ids=json.dumps,
)
def test_a_call_may_be_without_arguments(turn: dict[str, Any], encode: Encode, decode: Decode) -> None:
    encoded = encode(OPENAI, {"messages": [user("a"), turn]}, prompt_type="qwen")
    assert trained(encoded, decode) == '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'


ARGUMENTS = [{"at": 1}, {"at": 2}]
NATIVE = [
    user("a"),
    answer(
        "Let me.", tool_calls=[{"id": at, "function": {"name": "look", "arguments": ARGUMENTS[at]}} for at in (0, 1)]
    ),
    *({"role": "tool", "content": content, "tool_call_id": at} for at, content in enumerate(("open", '{"é": 1}'))),
    answer("Open."),
]
CALLED = [json.dumps({"name": "look", "arguments": arguments}) for arguments in ARGUMENTS]
USED = [{"type": "tool_use", "id": at, "name": "look", "input": ARGUMENTS[at]} for at in (0, 1)]
RESULTS = ["open", [{"type": "text", "text": '{"é": 1}'}]]


@pytest.mark.parametrize(
    "turns",
    [
        [
            *(user("a"), answer("Let me."), {"role": "tool_call", "content": CALLED[0]}),
            *({"role": "tool_call", "content": CALLED[1]}, {"role": "tool_response", "content": "open"}),
            *({"role": "tool_response", "content": {"é": 1}}, answer("Open.")),
        ],
        [
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "Let me."},
            {"from": "function_call", "value": f"[{CALLED[0]}, {CALLED[1]}]"},
            *({"from": "observation", "value": value} for value in ("open", '{"é": 1}')),
            {"from": "gpt", "value": "Open."},
        ],
        [
            *(user([{"type": "text", "text": "a"}]), answer([{"type": "text", "text": "Let me."}, *USED])),
            user([{"type": "tool_result", "tool_use_id": at, "content": RESULTS[at]} for at in (0, 1)]),
            answer([{"type": "text", "text": "Open."}]),
        ],
    ],
    ids=["turns of calls", "ShareGPT", "parts"],
)
def test_calls_beside_text_and_several_at_once_are_read_from_every_form(
    turns: list[Any], encode: Encode, decode: Decode
) -> None:
    encoded = encode(OPENAI, {"messages": turns}, prompt_type="qwen")
    expected = encode(OPENAI, {"messages": NATIVE}, prompt_type="qwen")
    assert not encoded.dropped and encoded.tokens["labels"].tolist() == expected.tokens["labels"].tolist()
    shown = "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in CALLED)
    assert trained(encoded, decode) == f"Let me.{shown}<|im_end|>Open.<|im_end|>"


def test_a_call_joins_no_answer_of_another_weight(encode: Encode) -> None:
    turns = [user("a"), answer("Let me.", weight=0), {"role": "tool_call", "content": CALLED[0]}]
    assert encode(OPENAI, {"messages": turns}, prompt_type="qwen").dropped == {"consecutive_roles": 1}


def test_a_question_may_follow_the_result_of_a_tool(encode: Encode, decode: Decode) -> None:
    plain = [*NATIVE[:4], user("b"), answer("c")]
    results = [{"type": "tool_result", "tool_use_id": at, "content": RESULTS[at]} for at in (0, 1)]
    parts = [*NATIVE[:2], user([*results, {"type": "text", "text": "b"}]), answer("c")]
    for turns in (plain, parts):
        encoded = encode(OPENAI, {"messages": turns}, prompt_type="qwen")
        shown = decode(encoded.tokens["input_ids"])
        assert shown.endswith("</tool_response><|im_end|>\n" + text(("user", "b"), ("assistant", "c")))


def test_results_of_tools_belong_to_users_and_calls_to_answers(encode: Encode) -> None:
    results = [{"type": "tool_result", "tool_use_id": 1, "content": "open"}]
    assert encode(OPENAI, {"messages": [user("a"), answer(results)]}).dropped == {"content_not_text": 1}
    assert encode(OPENAI, {"messages": [user(USED), answer("b")]}).dropped == {"tool_call_outside_an_answer": 1}


def test_openais_older_column_of_functions_is_read_unless_tools_are_mapped(encode: Encode, decode: Decode) -> None:
    row = {"messages": [user("a"), answer("b")], "functions": [TOOL]}
    shown = decode(encode(OPENAI, row, prompt_type="qwen3").tokens["input_ids"])
    assert json.dumps({"type": "function", "function": TOOL}) in shown
    assert "look" not in decode(encode(OPENAI, row, map_keys={"tools": ""}).tokens["input_ids"])


SWITCH = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.mark.parametrize("settings", [{"enable_thinking": False}, '{"enable_thinking": false}', {}, None, {"other": 1}])
def test_settings_of_a_row_reach_the_chat_template(settings: Any, spec: TokenizerSpec) -> None:
    row = {"conversations": [user("a")], "chat_template_kwargs": settings}
    handler = build_handler(HandlerOptions(PPO, "hf"), replace(spec, chat_template=SWITCH))
    given = json.loads(settings) if isinstance(settings, str) else settings or {}
    expected = load_tokenizer(spec.path).apply_chat_template(
        [user("a")], chat_template=SWITCH, add_generation_prompt=True, return_dict=False, **given
    )
    assert handler.encode([Row("r", 1, row)]).tokens["input_ids"].tolist() == expected


def test_a_row_may_switch_reasoning_off(encode: Encode, decode: Decode) -> None:
    messages = [user("a"), answer("b")]
    rows = [{"messages": messages, "chat_template_kwargs": {"enable_thinking": on}} for on in (False, True, None)]
    encoded = encode(OPENAI, *rows, prompt_type="qwen3")
    opened = "<think>\n\n</think>\n\n"
    assert trained(encoded, decode) == f"b<|im_end|>{opened}b<|im_end|>{opened}b<|im_end|>"
    wrong = [{"messages": messages, "chat_template_kwargs": found} for found in ("no", [1], {"messages": []})]
    assert encode(OPENAI, *wrong).dropped == {"invalid_chat_template_kwargs": 3}


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": TOOL}],
        [TOOL],
        [{"type": "function", **TOOL}],
        [SCHEMA],
        TOOL,
        json.dumps([TOOL]),
        [json.dumps(TOOL)],
    ],
    ids=json.dumps,
)
def test_bare_descriptions_of_tools_are_shown_as_functions(tools: Any, encode: Encode, decode: Decode) -> None:
    row = {"messages": [user("a"), answer("b")], "tools": tools}
    shown = decode(encode(OPENAI, row, prompt_type="qwen3").tokens["input_ids"])
    assert f"<tools>\n{json.dumps({'type': 'function', 'function': TOOL})}\n</tools>" in shown


EVERY_FIELD = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }} {{ m.tool_call_id }}\n{{ m.plan }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{% if c.id is not defined or c.id|length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ c.id }}{{ c.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant  \n{% endif %}"
)


def test_a_chat_template_sees_every_field_that_the_tokenizers_own_rendering_shows(spec: TokenizerSpec) -> None:
    call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "look", "arguments": {"at": "é"}}}
    messages = [
        user("Is the door open?", name="Ann"),
        answer("", plan="look first", tool_calls=[call]),
        {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "look", "content": "open"},
        answer("It is."),
    ]
    handler = build_handler(HandlerOptions(OPENAI, "hf"), replace(spec, chat_template=EVERY_FIELD))
    encoded = handler.encode([Row("r", 1, {"messages": messages})])
    tokenizer = load_tokenizer(spec.path)
    assert encoded.tokens["input_ids"].tolist() == tokenizer.apply_chat_template(
        messages, chat_template=EVERY_FIELD, return_dict=False
    )
    labels = encoded.tokens["labels"]
    assert tokenizer.decode(labels[labels != -100]) == (
        'look firsta1b2c3d4e{"name": "look", "arguments": {"at": "é"}}<|im_end|>It is.<|im_end|>'
    )


NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("handler", [OPENAI, PPO, "SharegptStylePairwiseHandler"])
def test_a_row_that_the_template_refuses_is_skipped_and_counted_when_asked(handler: str, spec: TokenizerSpec) -> None:
    own = replace(spec, chat_template=NO_SYSTEM)
    turns = [user("Hi")] if handler.endswith("PairwiseHandler") else [user("Hi"), answer("Hello.")]
    sides = {"chosen": "good", "rejected": "bad"}
    rows = []
    for number, system in enumerate(([], [{"role": "system", "content": "Be kind"}]), 1):
        conversation = [*system, *turns]
        rows.append(Row("r", number, {"messages": conversation, "conversations": conversation, **sides}))
    encoded = build_handler(HandlerOptions(handler, "hf", on_bad_row="skip"), own).encode(rows)
    assert encoded.dropped == {"refused_by_template": 1} and encoded.kept.tolist() == [0]
    with pytest.raises(UserError, match=r"r:2: .* System role not supported; --on-bad-row skip leaves such rows out"):
        build_handler(HandlerOptions(handler, "hf"), own).encode(rows)


def test_a_row_with_tools_that_the_template_cannot_show_is_skipped_when_asked(encode: Encode) -> None:
    row = {"messages": [user("a"), answer("b")], "tools": [TOOL]}
    assert encode(OPENAI, row, on_bad_row="skip").dropped == {"refused_by_template": 1}
