"""Conversations, and what a template makes of them."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from mindllm.errors import RowError

Role = Literal["system", "user", "assistant", "tool"]
Tools = Sequence[Mapping[str, Any]]  # descriptions of tools the model may call, as OpenAI's API has them

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")  # names that data and chat templates have for it


class ToolCall(NamedTuple):
    """A call of a tool in an answer."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class Message(NamedTuple):
    """One turn of a conversation. `tool_calls` belong to assistant turns, their results are turns of role "tool"."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None  # a field of its own in the data; None = it may stand in `content`
    trained: bool = True  # false for an answer that the data marks as not to be learned
    fields: Mapping[str, Any] = MappingProxyType({})  # the data's other fields (name, tool_call_id), for chat templates


def as_dict(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates and OpenAI's API have."""
    turn: dict[str, Any] = {**message.fields, "role": message.role, "content": message.content}
    if message.reasoning is not None:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [call_as_dict(call) for call in message.tool_calls]
    return turn


def call_as_dict(call: ToolCall) -> dict[str, Any]:
    """A call in that form."""
    named = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return named if call.id is None else {"id": call.id, **named}


def as_text(turns: Sequence[Mapping[str, Any]]) -> str:
    """A conversation as plain text: a lone question as it is, else each turn after its role, with blank lines between.

    Calls of tools stand after an answer's text, as JSON, one a line.
    """
    if [turn["role"] for turn in turns] == ["user"]:
        return str(turns[0]["content"])
    return "\n\n".join(f"{turn['role']}: {spoken(turn)}" for turn in turns)


def spoken(turn: Mapping[str, Any]) -> str:
    """The text of a turn, and its calls of tools as JSON, one a line."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in turn.get("tool_calls", ())]
    return "\n".join([turn["content"], *calls] if turn["content"] else calls)


class Rendered(NamedTuple):
    """Text, and the (start, end) character ranges that are marked: those that are trained, one per answer.

    `bare` are those of the ranges whose answer has reasoning that the template leaves out.
    """

    text: str
    marked: list[tuple[int, int]]
    bare: tuple[tuple[int, int], ...] = ()


class TemplateRefusal(RowError):
    """A template cannot show a conversation, or only a part of it."""

    reason = "refused_by_template"


class Template(Protocol):
    """What handlers ask of a template. Methods raise TemplateRefusal for a conversation that it cannot show whole."""

    adds_bos: bool  # its texts do not begin with the BOS, but their ids are to
    split_answers: bool  # encode answers apart from their prompts
    markers: list[str]  # tokens of the template that the tokenizer must know

    @property
    def chat_template(self) -> str:
        """The template as jinja."""

    def under(self, settings: Mapping[str, Any]) -> "Template":
        """The template as it is with some settings of chat templates; those that it does not read change nothing."""

    def render_prompt(self, messages: list[Message], tools: Tools = ()) -> str:
        """The conversation up to its last question, ending where the model is to answer."""

    def render_dialogue(self, messages: list[Message], tools: Tools = ()) -> Rendered:
        """The whole conversation, and which parts of it are answers (with their end token)."""


def split_reasoning(content: str) -> tuple[str, str]:
    """An answer's reasoning, which stands between <think> and </think>, and the rest; ("", content) without one."""
    if "</think>" not in content:
        return "", content
    reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
    return reasoning, content.split("</think>")[-1].lstrip("\n")
