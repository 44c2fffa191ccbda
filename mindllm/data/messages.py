"""Conversations, and what a template makes of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from mindllm.data.rows import RowError

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


class Rendered(NamedTuple):
    """Text, and the (start, end) character ranges that are marked: those that are trained, one per answer."""

    text: str
    marked: list[tuple[int, int]]


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
