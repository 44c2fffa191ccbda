"""What a reward model with its own tokenizer reads: whole conversations, as transformers renders them."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mindllm.data import PromptDataset
from mindllm.data.tokenizer import reads_alike
from mindllm.errors import UserError
from mindllm.preprocess.run import PreprocessOptions, preprocess
from mindllm.templates.retemplate import render_answered

WORDS = ["<end>", "say", "one", "two", "three"]
ROLES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ARGUMENTS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name + c.function.arguments }}]{% endfor %}{% endfor %}"
)
NULL_CONTENT = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}CALL[{{ m.tool_calls[0].function.name }}]"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
REFUSES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}\n"
)
LEAVES_OUT = "{% for m in messages if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endfor %}\n"
WITH_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + ROLES

CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "é", "parameters": {"type": "object"}}}
HISTORY = [
    {"role": "system", "content": "three"},
    {"role": "user", "content": "say two"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "say one"},
]
WITH_RESULT = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "three"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "four"},
]


def tokenizer(template: str | None = ROLES, words: list[str] = WORDS) -> PreTrainedTokenizerBase:
    built = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token=words[0], chat_template=template)


def answered(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*copy.deepcopy(turns), {"role": "assistant", "content": "<think>\nso\n</think>\n\nfive"}]


OPENAI = {
    "messages": "messages",
    "tags": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "observation_tag": "tool",
        "system_tag": "system",
    },
}


@pytest.mark.parametrize("prompt_type", ["hf", "qwen3", "empty"])
@pytest.mark.parametrize("template", [WITH_TOOLS, None])
def test_the_reward_model_reads_what_the_rows_say_whatever_template_the_actor_has(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path, prompt_type: str, template: str | None
) -> None:
    prompts = [HISTORY, HISTORY[1:2], [*HISTORY[1:3], {"role": "user", "content": "مرحبا <|im_end|> {content}"}]]
    source, prefix = str(write_jsonl([{"messages": turns} for turns in prompts])), tmp_path / "rl"
    preprocess(
        PreprocessOptions(
            [source],
            prefix,
            tokenizer_dir,
            "PPOSharegptStyleInstructionHandler",
            prompt_type=prompt_type,
            map_keys=OPENAI,
        )
    )
    data = PromptDataset(prefix)
    for number, turns in enumerate(prompts):
        text = render_answered(tokenizer(template), data[number].messages, "five", data[number].tools)
        expected = "".join(f"<{turn['role']}>{turn['content']}" for turn in turns) + "<assistant>five"
        if template is None:
            ends = {"system": "\n", "user": "", "assistant": "<end>"}
            expected = "".join(turn["content"] + ends[turn["role"]] for turn in turns) + "five<end>"
        assert text == expected


def test_calls_and_tools_of_the_data_reach_the_reward_model(
    write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path
) -> None:
    rows = [{"messages": WITH_RESULT, "tools": [TOOL]}, {"messages": HISTORY[1:2]}]
    prefix = tmp_path / "rl"
    handler = "PPOSharegptStyleInstructionHandler"
    preprocess(
        PreprocessOptions(
            [str(write_jsonl(rows))], prefix, tokenizer_dir, handler, prompt_type="qwen3", map_keys=OPENAI
        )
    )
    data = PromptDataset(prefix)
    own = tokenizer("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + ARGUMENTS.replace("arguments", "name"))
    for number, row in enumerate(rows):
        expected = own.apply_chat_template(answered(row["messages"]), tools=row.get("tools"), tokenize=False)
        response = answered([])[0]["content"]
        assert render_answered(own, data[number].messages, response, data[number].tools) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (ARGUMENTS, '<user>one<assistant>[f{"a": 1}]<tool>three<assistant>two<user>four<assistant>five'),
        (NULL_CONTENT, "<user>one<assistant>CALL[f]<tool>three<assistant>two<user>four<assistant>five"),
        (
            ROLES,
            '<user>one<assistant>{"name": "f", "arguments": {"a": 1}}<user>three<assistant>two<user>four'
            "<assistant>five",
        ),
    ],
)
def test_calls_take_the_form_that_the_template_shows(template: str, expected: str) -> None:
    turns = copy.deepcopy(WITH_RESULT)
    assert render_answered(tokenizer(template), turns, "five") == expected
    assert turns == WITH_RESULT


def test_a_template_that_quotes_contents_or_moves_the_system_prompt_leaves_nothing_out() -> None:
    quotes = ROLES.replace("m.content", "m.content | tojson")
    turns = [{"role": "user", "content": 'say "é"\n'}, HISTORY[2], HISTORY[3]]
    assert render_answered(tokenizer(quotes), turns, "five") == (
        '<user>"say \\"é\\"\\n"<assistant>"two"<user>"say one"<assistant>"five"'
    )
    moves = (
        "{% for m in messages[1:] %}<{{ m.role }}>{% if loop.revindex == 2 %}{{ messages[0].content }}: {% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    assert render_answered(tokenizer(moves), HISTORY, "five") == (
        "<user>say two<assistant>two<user>three: say one<assistant>five"
    )


@pytest.mark.parametrize("template", [REFUSES, LEAVES_OUT])
@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (HISTORY[:2], "<user>three\n\nsay two<assistant>five"),
        (
            WITH_RESULT[:3],
            '<user>one<assistant>{"name": "f", "arguments": {"a": 1}}<user>three<assistant>five',
        ),
    ],
)
def test_turns_that_a_template_refuses_or_leaves_out_become_questions(
    template: str, turns: list[dict[str, Any]], expected: str
) -> None:
    assert render_answered(tokenizer(template), turns, "five") == expected


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "{{ messages[-1].content }}"])
def test_a_template_that_shows_no_conversation_is_an_error(template: str) -> None:
    with pytest.raises(UserError, match="cannot read a conversation: .*(never|leaves out a turn)"):
        render_answered(tokenizer(template), HISTORY, "five")


@pytest.mark.parametrize("response", ["", " \n", "</think></think>", "<think>", '{"a": [', "<end>"])
def test_no_response_is_refused_whatever_it_says(response: str) -> None:
    drops_reasoning = ROLES.replace("m.content", "m.content.split('</think>')[0].strip()")
    assert "<user>say one<assistant>" in render_answered(tokenizer(drops_reasoning), HISTORY, response)


def record(prefix: Path, chat_template: str) -> Path:
    """A manifest that says which template its data has, and no more."""
    template = {"name": "x", "end_tokens": ["<end>"], "chat_template": chat_template}
    Path(f"{prefix}_manifest.json").write_text(json.dumps({"format_version": 1, "template": template}))
    return prefix


def test_a_reward_model_reads_the_actors_tokens_only_in_the_template_of_the_data(tmp_path: Path) -> None:
    actors, other = tokenizer(ROLES), tokenizer(WITH_TOOLS)
    assert reads_alike(tokenizer(ROLES), actors, [tmp_path / "unsaid"])
    assert reads_alike(tokenizer(None), actors, [tmp_path / "unsaid"])
    assert not reads_alike(other, actors, [tmp_path / "unsaid"])
    assert not reads_alike(tokenizer(ROLES, WORDS[::-1]), actors, [tmp_path / "unsaid"])
    data = record(tmp_path / "data", WITH_TOOLS)
    assert reads_alike(other, actors, [data])
    assert not reads_alike(tokenizer(ROLES), actors, [data])  # the actor's own template is not what the data has
    assert not reads_alike(other, actors, [data, record(tmp_path / "held_out", ROLES)])


@pytest.mark.peer
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "llama3_1", "phi3", "glm4moe", "gemma"])
def test_published_templates_show_a_conversation_as_transformers_does(name: str) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install -e .[peers]")
    jinja = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    own, prompts = tokenizer(jinja), [HISTORY[1:], HISTORY]
    own.bos_token = "<end>"
    if name in ("qwen2_5", "qwen3", "llama3_1"):
        prompts.append(WITH_RESULT)
    for turns in prompts:
        tools = [TOOL] if turns is WITH_RESULT else None
        given = turns
        if name == "gemma" and turns is HISTORY:  # which refuses a system prompt
            given = [{"role": "user", "content": "three\n\nsay two"}, *turns[2:]]
        expected = own.apply_chat_template(answered(given), tools=tools, tokenize=False).rstrip("\n")
        assert render_answered(own, turns, answered([])[0]["content"], tools or []) == expected
