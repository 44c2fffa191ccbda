"""Rows that hold a conversation as a list of turns: ShareGPT's and OpenAI's styles."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindllm.data.handlers.base import DropRow, HandlerOptions, MapKeys, register_handler
from mindllm.data.handlers.cells import checked_text, columns_that_must_exist, mapped, text_cell, tools_cell
from mindllm.data.handlers.instructions import InstructionHandler
from mindllm.data.handlers.pairs import PairHandler
from mindllm.data.handlers.prompts import AnsweredPromptHandler, PromptHandler
from mindllm.data.messages import Message, Role, ToolCall, Tools
from mindllm.data.rows import Row
from mindllm.errors import UserError, did_you_mean

_COLUMNS: dict[str, str | None] = {role: role for role in ("messages", "system", "tools", "chosen", "rejected")}
_BEFORE: dict[Role, tuple[Role | None, ...]] = {  # which turns a turn may follow; None = the beginning
    "user": (None, "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
    "system": (None,),
}


@dataclass(frozen=True)
class _Style:
    """The names by which a conversation's parts go."""

    messages: str
    role: str
    content: str
    roles: Mapping[str, Role]
    call_roles: frozenset[str] = field(default_factory=frozenset)  # whose content is a call of a tool, as JSON


_SHAREGPT_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
    "observation_tag": "observation",
    "function_tag": "function_call",
}
_OPENAI_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "tool",
    "function_tag": "function_call",
}


class ConversationRows:
    """Rows of turns under a column mapping: `messages`, `system`, `tools`, and the names of the `tags` within."""

    def __init__(
        self, map_keys: MapKeys | None, messages: str, tags: dict[str, str], required: tuple[str, ...] = ()
    ) -> None:
        """Bind.

        Raises:
            UserError: an unknown key or tag, or no column for the messages.
        """
        given = dict(map_keys or {})
        self._style = _style(messages, {**tags, **_checked_tags(given.pop("tags", {}))})
        must = ("messages", *required)
        self._columns = mapped(given, {**_COLUMNS, "messages": messages}, must)
        self.required = columns_that_must_exist(given, self._columns, must)
        self.consumed = {name for role in ("messages", "system", "tools") if (name := self._columns[role])}

    def tools(self, row: Row) -> Tools:
        """See `RowShape.tools`."""
        return tools_cell(row, self._columns["tools"])

    def turns(self, row: Row) -> list[Message]:
        """The conversation, checked: a system prompt at most at the beginning, and turns that follow each other.

        Raises:
            DropRow: it is no such conversation.
        """
        turns = row.values.get(self._columns["messages"] or "")
        if turns is None:
            raise DropRow("null_messages")
        if not isinstance(turns, list):
            raise DropRow("messages_not_a_list")
        messages = [self._message(turn) for turn in turns]
        system = text_cell(row, self._columns["system"], "system")
        if system and not (messages and messages[0].role == "system"):
            messages.insert(0, Message("system", system))
        previous: Role | None = None
        for message in messages:
            if previous not in _BEFORE[message.role]:
                raise DropRow("consecutive_roles" if previous == message.role else "invalid_role_order")
            previous = message.role
        if not any(message.role == "user" for message in messages):
            raise DropRow("no_user_turn")
        return messages

    def prompt(self, row: Row) -> list[Message]:
        """The conversation up to its last user turn; see `PromptShape.prompt`."""
        messages = self.turns(row)
        prompt = messages[: 1 + max(turn for turn, message in enumerate(messages) if message.role == "user")]
        if not prompt[-1].content.strip():
            raise DropRow("empty_prompt")
        return prompt

    def prompt_text(self, row: Row) -> str:
        """The last user turn; see `PromptShape.prompt_text`."""
        return self.prompt(row)[-1].content

    def dialogue(self, row: Row) -> list[Message]:
        """The conversation, which an answer must end; see `DialogueShape.dialogue`."""
        messages = self.turns(row)
        if messages[-1].role != "assistant":
            raise DropRow("no_final_answer")
        if not any(m.content.strip() or m.tool_calls for m in messages if m.role == "assistant"):
            raise DropRow("empty_response")
        return messages

    def reference(self, row: Row) -> str:
        """The final answer; see `AnsweredShape.reference`."""
        return self.dialogue(row)[-1].content

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The conversation with each of its two answers; see `PairShape.pair`."""
        messages = self.turns(row)
        if messages[-1].role not in ("user", "tool"):
            raise DropRow("no_final_user_turn")
        return [*messages, self._answer(row, "chosen")], [*messages, self._answer(row, "rejected")]

    def _answer(self, row: Row, side: str) -> Message:
        value = row.values.get(self._columns[side] or "")
        if value is None:
            raise DropRow(f"null_{side}")
        message = Message("assistant", checked_text(value, side)) if isinstance(value, str) else self._message(value)
        if message.role != "assistant":
            raise DropRow(f"{side}_not_an_answer")
        if not message.content.strip() and not message.tool_calls:
            raise DropRow(f"empty_{side}")
        return message

    def _message(self, turn: Any) -> Message:
        if not isinstance(turn, dict):
            raise DropRow("turn_not_an_object")
        name = turn.get(self._style.role)
        if not isinstance(name, str) or name not in self._style.roles:
            raise DropRow("unknown_role")
        role, content = self._style.roles[name], turn.get(self._style.content)
        if name in self._style.call_roles:
            return Message(role, "", _calls_in(content))
        calls = tuple(_openai_call(call) for call in turn.get("tool_calls") or ())
        return Message(role, checked_text(content, "content"), calls if role == "assistant" else ())


def _checked_tags(tags: Any) -> dict[str, str]:
    if not isinstance(tags, dict) or not all(isinstance(name, str) for name in tags.values()):
        raise UserError(f"--map-keys: 'tags' must be an object from tag names to names, found {tags!r}")
    for tag in tags:
        if tag not in _SHAREGPT_TAGS:
            known = ", ".join(_SHAREGPT_TAGS)
            raise UserError(f"--map-keys: unknown tag '{tag}'; known are {known}{did_you_mean(tag, _SHAREGPT_TAGS)}")
    return tags


def _style(messages: str, tags: Mapping[str, str]) -> _Style:
    roles: dict[str, Role] = {
        tags["system_tag"]: "system",
        tags["observation_tag"]: "tool",
        tags["function_tag"]: "assistant",
        tags["assistant_tag"]: "assistant",
        tags["user_tag"]: "user",
    }
    calls = frozenset({tags["function_tag"]} - {tags["assistant_tag"]})
    return _Style(messages, tags["role_tag"], tags["content_tag"], roles, calls)


def _calls_in(content: Any) -> tuple[ToolCall, ...]:
    try:
        found = json.loads(content) if isinstance(content, str) else content
    except ValueError as error:
        raise DropRow("invalid_tool_call") from error
    return tuple(_call(call) for call in (found if isinstance(found, list) else [found]))


def _openai_call(call: Any) -> ToolCall:
    return _call(call.get("function", call) if isinstance(call, dict) else call)


def _call(call: Any) -> ToolCall:
    """A call {name, arguments}; arguments as an object, or one as JSON text."""
    name, arguments = (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise DropRow("invalid_tool_call") from error
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise DropRow("invalid_tool_call")
    return ToolCall(name, arguments)


def _sharegpt(options: HandlerOptions, required: tuple[str, ...] = ()) -> ConversationRows:
    return ConversationRows(options.map_keys, "conversations", _SHAREGPT_TAGS, required)


@register_handler
class SharegptStyleInstructionHandler(InstructionHandler):
    """ShareGPT conversations as dialogues for SFT."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> ConversationRows:
        """See `Handler.make_shape`."""
        return _sharegpt(options)


@register_handler
class OpenAIInstructionHandler(InstructionHandler):
    """OpenAI conversations, with calls of tools and their results, as dialogues for SFT."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> ConversationRows:
        """See `Handler.make_shape`."""
        return ConversationRows(options.map_keys, "messages", _OPENAI_TAGS)


@register_handler
class SharegptStylePairwiseHandler(PairHandler):
    """ShareGPT conversations with a chosen and a rejected answer, for reward models and DPO."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> ConversationRows:
        """See `Handler.make_shape`."""
        return _sharegpt(options, ("chosen", "rejected"))


@register_handler
class PPOSharegptStyleInstructionHandler(PromptHandler):
    """ShareGPT conversations as prompts for RL."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> ConversationRows:
        """See `Handler.make_shape`."""
        return _sharegpt(options)


@register_handler
class R1SharegptStyleInstructionHandler(AnsweredPromptHandler):
    """ShareGPT conversations as prompts for RL whose final answer is the right one."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> ConversationRows:
        """See `Handler.make_shape`."""
        return _sharegpt(options)
