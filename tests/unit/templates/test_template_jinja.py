"""Templates as jinja: what transformers renders with them is what was trained, and where answers end."""

from dataclasses import replace

import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.templates.chat import ChatTemplate
from mindllm.templates.declared import DeclaredTemplate, TemplateFile
from mindllm.templates.lookup import HF, end_tokens, load_template, template_names
from mindllm.templates.messages import Message, Template, ToolCall

SYSTEM = Message("system", "Be brief; {tools} {content}")
TURNS = [
    Message("user", "  sort 3 1 2 \n"),
    Message("assistant", "1 2 3 😀"),
    Message("user", 'مرحبا {content} {bos} "quoted" \\n'),
    Message("assistant", "<think>\nwhy\n</think>\n\n\nthe quick\n\nbrown fox"),
    Message("user", "again"),
    Message("assistant", "<think>\nso\n</think>\n\nfine"),
]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds – {content}", "parameters": {"a": 1}}}
CALLS = (ToolCall("add", {"a": 1, "text": "é"}), ToolCall("add", {"a": 2}))
TOOL_TURNS = [
    Message("user", "a"),
    Message("assistant", "Let me see.", CALLS),
    Message("tool", "3"),
    Message("tool", "4"),
    Message("assistant", "", CALLS[:1]),
    Message("tool", "5"),
    Message("assistant", "It is 5."),
]
CONVERSATIONS = [
    TURNS,
    TURNS[:4],
    [SYSTEM, *TURNS],
    [Message("system", ""), *TURNS[:2]],
    [SYSTEM, *TURNS[:2], SYSTEM, *TURNS[2:4]],
]


@pytest.fixture
def marked_spec(spec: TokenizerSpec) -> TokenizerSpec:
    """A spec whose BOS and EOS are easy to see, and whose BOS stands before plain text."""
    return replace(spec, bos="†", eos="§", adds_bos=True, special_tokens={"bos_token": "†", "eos_token": "§"})


def text_of(template: Template, messages: list[Message], tools: list[dict[str, object]], is_prompt: bool) -> str:
    """What is trained, with the BOS that the handlers put before it."""
    text = template.render_prompt(messages, tools) if is_prompt else template.render_dialogue(messages, tools).text
    return ("†" if template.adds_bos else "") + text


def as_jinja(template: Template, spec: TokenizerSpec) -> ChatTemplate:
    """The template as transformers reads it from a tokenizer's files."""
    return ChatTemplate(replace(spec, chat_template=template.chat_template))


@pytest.mark.parametrize("prompt_type", [name for name in template_names() if name != HF])
def test_the_jinja_of_a_template_renders_what_was_trained(prompt_type: str, marked_spec: TokenizerSpec) -> None:
    template = load_template(prompt_type, marked_spec)
    jinja = as_jinja(template, marked_spec)
    for messages in CONVERSATIONS:
        assert jinja.render_prompt(messages[:-1]) == text_of(template, messages[:-1], [], is_prompt=True)
        text = jinja._render(messages, (), add_generation_prompt=False)
        assert text == text_of(template, messages, [], is_prompt=False)


@pytest.mark.parametrize("prompt_type", ["qwen", "qwen3"])
@pytest.mark.parametrize("system", [[], [SYSTEM], [Message("system", "")]], ids=["none", "system", "empty"])
def test_the_jinja_of_a_template_knows_its_tools(
    prompt_type: str, system: list[Message], marked_spec: TokenizerSpec
) -> None:
    template = load_template(prompt_type, marked_spec)
    jinja = as_jinja(template, marked_spec)
    for stop in (1, 4, 6):
        messages = [*system, *TOOL_TURNS[:stop]]
        assert jinja.render_prompt(messages, [TOOL]) == text_of(template, messages, [TOOL], is_prompt=True)
    text = jinja._render([*system, *TOOL_TURNS], [TOOL], add_generation_prompt=False)
    assert text == text_of(template, [*system, *TOOL_TURNS], [TOOL], is_prompt=False)


@pytest.mark.parametrize(("messages", "tools"), [(TURNS[:1], [TOOL]), (TOOL_TURNS[:2], []), (TOOL_TURNS[2:3], [])])
def test_the_jinja_of_a_template_without_tools_refuses_them(
    messages: list[Message], tools: list[dict[str, object]], spec: TokenizerSpec
) -> None:
    with pytest.raises(UserError, match="this chat template knows no"):
        as_jinja(load_template("chatml", spec), spec).render_prompt(messages, tools)


def test_prompts_made_without_reasoning_ask_for_none_by_default(spec: TokenizerSpec) -> None:
    template = load_template("qwen3", spec, thinking=False)
    prompt = as_jinja(template, spec).render_prompt(TURNS[:1])
    assert prompt == template.render_prompt(TURNS[:1])
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(UserError, match="knows no reasoning"):
        ChatTemplate(replace(spec, chat_template=load_template("chatml", spec).chat_template), thinking=False)


def test_chatml_as_jinja_by_hand(spec: TokenizerSpec) -> None:
    jinja = as_jinja(load_template("chatml", spec), spec)
    assert jinja.render_prompt([Message("system", "s"), Message("user", "a")]) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )


ENDS = {
    **dict.fromkeys("alpaca baichuan2 deepseek2 deepseek3 default empty llama2 mistral vicuna".split(), ["§"]),
    **dict.fromkeys("chatml internlm2 qwen qwen3 qwen_math_r1 qwen_r1 yi hf".split(), ["<|im_end|>"]),
    **{"gemma": ["<end_of_turn>"], "glm4": ["<|user|>"], "llama3": ["<|eot_id|>"], "phi3": ["<|end|>"]},
}


@pytest.mark.parametrize("prompt_type", template_names())
def test_the_end_token_of_every_template_is_known(prompt_type: str, marked_spec: TokenizerSpec) -> None:
    assert end_tokens(load_template(prompt_type, marked_spec), marked_spec) == ENDS[prompt_type]


@pytest.mark.parametrize(
    ("answer", "ends"),
    [("{content}", []), ("{content}\n###", []), ("{content}<|eot_id|>\n", ["<|eot_id|>"])],
)
def test_an_own_template_ends_answers_with_a_special_token_or_not_at_all(
    answer: str, ends: list[str], spec: TokenizerSpec
) -> None:
    template = DeclaredTemplate(TemplateFile(user="{content}", header=":", answer=answer), spec)
    assert end_tokens(template, spec) == ends
