"""Rows that hold a conversation as a list of turns: ShareGPT's and OpenAI's styles."""

import json
from collections.abc import Sequence
from typing import Any

from mindllm.preprocess.handlers.base import DropRow, HandlerOptions, MapKeys, register_handler
from mindllm.preprocess.handlers.cells import columns_that_must_exist, mapped, text_cell, tools_cell
from mindllm.preprocess.handlers.instructions import InstructionHandler
from mindllm.preprocess.handlers.pairs import PairHandler
from mindllm.preprocess.handlers.prompts import AnsweredPromptHandler, PromptHandler
from mindllm.preprocess.handlers.turns import (
    OPENAI_TAGS,
    SHAREGPT_TAGS,
    TurnStyle,
    answered,
    check_order,
    checked_tags,
    read_answer,
    read_turns,
    repeated_prompt,
)
from mindllm.preprocess.inputs.rows import Row
from mindllm.templates.messages import Message, Tools

_COLUMNS: dict[str, str | None] = {role: role for role in ("messages", "system", "tools", "chosen", "rejected")}


class ConversationRows:
    """Rows of turns under a column mapping: `messages`, `system`, `tools`, and the names of the `tags` within."""

    def __init__(
        self, map_keys: MapKeys | None, messages: str, tags: dict[str, str], required: Sequence[str] = ("messages",)
    ) -> None:
        """Bind.

        Raises:
            UserError: an unknown key or tag, or no column for a required one.
        """
        given = dict(map_keys or {})
        self._style = TurnStyle.of({**tags, **checked_tags(given.pop("tags", {}))})
        self._columns = mapped(given, {**_COLUMNS, "messages": messages}, required)
        self.required = columns_that_must_exist(given, self._columns, required)
        self.consumed = {name for role in ("messages", "system", "tools") if (name := self._columns[role])}
        # OpenAI's older name for the tools, unless the mapping says which column holds them.
        self._older_tools = None if {"tools", "functions"} & {*given, *given.values()} else "functions"
        self.consumed |= {self._older_tools} if self._older_tools else set()

    def tools(self, row: Row) -> Tools:
        """See `RowShape.tools`."""
        return tools_cell(row, self._columns["tools"]) or tools_cell(row, self._older_tools)

    def turns(self, row: Row) -> list[Message]:
        """The conversation, checked: a system prompt at most at the beginning, and turns that follow each other.

        Raises:
            DropRow: it is no such conversation.
        """
        turns = row.values.get(self._columns["messages"] or "")
        if turns is None:
            raise DropRow("null_messages")
        if isinstance(turns, str):
            turns = _parsed(turns)
        if not isinstance(turns, list):
            raise DropRow("messages_not_a_list")
        messages = read_turns(turns, self._style)
        system = text_cell(row, self._columns["system"], "system")
        if system and not (messages and messages[0].role == "system"):
            messages.insert(0, Message("system", system))
        check_order(messages)
        if not any(message.role == "user" for message in messages):
            raise DropRow("no_user_turn")
        return messages

    def prompt(self, row: Row) -> list[Message]:
        """The conversation up to its last user turn, or to results of tools that end it; see `PromptShape.prompt`."""
        messages = self.turns(row)
        asks = ("user", "tool") if messages[-1].role == "tool" else ("user",)
        prompt = messages[: 1 + max(turn for turn, message in enumerate(messages) if message.role in asks)]
        if not prompt[-1].content.strip():
            raise DropRow("empty_prompt")
        return prompt

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
        """The conversation with each of its two answers, which may repeat it; see `PairShape.pair`."""
        chosen, rejected = (
            read_answer(row.values.get(self._columns[side] or ""), side, self._style) for side in ("chosen", "rejected")
        )
        own = repeated_prompt((chosen, rejected)) if row.values.get(self._columns["messages"] or "") is None else None
        if own is not None:
            system = text_cell(row, self._columns["system"], "system")
            has_system = not system or (own and own[0].role == "system")
            prompt = own if has_system else [Message("system", system), *own]
        else:
            prompt = self.turns(row)
            if prompt[-1].role not in ("user", "tool"):
                raise DropRow("no_final_user_turn")
        return answered(prompt, chosen, "chosen")[0], answered(prompt, rejected, "rejected")[0]


def _parsed(text: str) -> Any:
    """A list of turns that a table holds as JSON text; None for other text."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _sharegpt(options: HandlerOptions) -> ConversationRows:
    return ConversationRows(options.map_keys, "conversations", SHAREGPT_TAGS)


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
        return ConversationRows(options.map_keys, "messages", OPENAI_TAGS)


@register_handler
class SharegptStylePairwiseHandler(PairHandler):
    """ShareGPT conversations with a chosen and a rejected answer, for reward models and DPO."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> ConversationRows:
        """See `Handler.make_shape`."""
        # No column of the conversation, where the answers repeat it.
        return ConversationRows(options.map_keys, "conversations", SHAREGPT_TAGS, ("chosen", "rejected"))


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
