"""Alpaca-style rows: instruction, input, output, system, history."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mindllm.preprocess.handlers.base import DropRow, HandlerOptions, MapKeys, json_cell, register_handler
from mindllm.preprocess.handlers.cells import (
    checked_text,
    columns_that_must_exist,
    mapped,
    text_cell,
    tools_cell,
)
from mindllm.preprocess.handlers.instructions import InstructionHandler
from mindllm.preprocess.handlers.pairs import PairHandler
from mindllm.preprocess.handlers.prompts import AnsweredPromptHandler, PromptHandler
from mindllm.preprocess.handlers.turns import (
    ANY_STYLE,
    answered,
    check_order,
    holds_turns,
    read_answer,
    read_prompt,
    read_turns,
    repeated_prompt,
)
from mindllm.preprocess.inputs.rows import Row
from mindllm.templates.messages import Message, Tools

PROMPT_COLUMNS: dict[str, str | None] = {
    "prompt": "instruction",
    "query": "input",
    "system": "system",
    "history": "history",
    "tools": "tools",
}
_DIALOGUE_COLUMNS = {**PROMPT_COLUMNS, "response": "output"}
_PAIR_COLUMNS = {**PROMPT_COLUMNS, "chosen": "chosen", "rejected": "rejected"}


class AlpacaRows:
    """The Alpaca row shape under a column mapping, which takes the place of the defaults it names."""

    def __init__(
        self, map_keys: MapKeys | None, defaults: Mapping[str, str | None], required: tuple[str, ...] = ("prompt",)
    ) -> None:
        """Bind roles to columns.

        Raises:
            UserError: an unknown role, or no column for a required one.
        """
        self._columns = mapped(map_keys, defaults, required)
        self.required = columns_that_must_exist(map_keys, self._columns, required)
        self.consumed = {column for role in PROMPT_COLUMNS if (column := self._columns[role])}

    @classmethod
    def for_prompts(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which only the prompt is used. A column for the response may be named, but is not read.

        Raises:
            UserError: as `__init__`.
        """
        mapped(map_keys, _DIALOGUE_COLUMNS)  # refuses names that are wrong anywhere
        read = {role: column for role, column in (map_keys or {}).items() if role != "response"}
        return cls(read, PROMPT_COLUMNS)

    @classmethod
    def for_dialogues(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which prompt and response are used. Raises UserError as `__init__`."""
        return cls(map_keys, _DIALOGUE_COLUMNS, ("prompt", "response"))

    @classmethod
    def for_pairs(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which two answers are compared. Raises UserError as `__init__`."""
        # No column for the prompt, where the answers repeat it.
        return cls(map_keys, _PAIR_COLUMNS, ("chosen", "rejected"))

    def tools(self, row: Row) -> Tools:
        """See `RowShape.tools`."""
        return tools_cell(row, self._columns["tools"])

    def prompt(self, row: Row) -> list[Message]:
        """System prompt, history and the row's question; see `PromptShape.prompt`."""
        asked, system = self._asked(row), self._system(row)
        if asked[0].role == "system":
            system, asked = asked[:1], asked[1:]
        messages = [*system, *self._history(row), *asked]
        check_order(messages)
        return messages

    def dialogue(self, row: Row) -> list[Message]:
        """The prompt and its answer; see `DialogueShape.dialogue`. Answers within a list of turns are not trained."""
        answer = read_answer(self._cell(row, "response"), "response", ANY_STYLE)
        dialogue, start = answered(self.prompt(row), answer, "response")
        if not holds_turns(self._cell(row, "prompt")):
            return dialogue
        return [*(message._replace(trained=False) for message in dialogue[:start]), *dialogue[start:]]

    def reference(self, row: Row) -> str:
        """The answer; see `AnsweredShape.reference`. A number is one too."""
        value = self._cell(row, "response")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return json.dumps(value)
        return read_answer(value, "response", ANY_STYLE)[-1].content

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The prompt with each of its two answers, which may repeat it; see `PairShape.pair`."""
        chosen, rejected = (read_answer(self._cell(row, side), side, ANY_STYLE) for side in ("chosen", "rejected"))
        prompt = self.prompt_of(row, (chosen, rejected))
        return answered(prompt, chosen, "chosen")[0], answered(prompt, rejected, "rejected")[0]

    def prompt_of(self, row: Row, answers: Sequence[Sequence[Message]]) -> list[Message]:
        """The prompt of some answers, which may bring it themselves where its column is empty.

        Raises:
            DropRow: there is none, or it is no prompt.
        """
        if self._cell(row, "prompt") not in (None, ""):
            return self.prompt(row)
        own = repeated_prompt(answers)
        if own is None:
            return self.prompt(row)
        return own if own and own[0].role == "system" else [*self._system(row), *own]

    def _cell(self, row: Row, role: str) -> Any:
        return row.values.get(self._columns[role] or "")

    def _asked(self, row: Row) -> list[Message]:
        """The question: one turn or, where its column holds a list of turns, those."""
        value = self._cell(row, "prompt")
        query = text_cell(row, self._columns["query"], "query")
        if holds_turns(value):
            *earlier, last = read_prompt(value, "prompt", ANY_STYLE)
            return [*earlier, last._replace(content=f"{last.content}\n{query}" if query else last.content)]
        parts = [checked_text(value, "prompt"), query]
        if not any(part.strip() for part in parts):
            raise DropRow("null_prompt" if value is None else "empty_prompt")
        return [Message("user", "\n".join(part for part in parts if part))]

    def _system(self, row: Row) -> list[Message]:
        system = text_cell(row, self._columns["system"], "system")
        return [Message("system", system)] if system else []

    def _history(self, row: Row) -> list[Message]:
        turns = json_cell(row, self._columns["history"], "history") or []
        if not isinstance(turns, list):
            raise DropRow("invalid_history")
        if all(isinstance(turn, dict) for turn in turns):
            return read_turns(turns, ANY_STYLE)
        messages = []
        for pair in turns:
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
                raise DropRow("invalid_history")
            messages += [Message("user", pair[0]), Message("assistant", pair[1])]
        return messages


@register_handler
class PPOAlpacaStyleInstructionHandler(PromptHandler):
    """Alpaca rows as prompts for RL."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_prompts(options.map_keys)


@register_handler
class R1AlpacaStyleInstructionHandler(AnsweredPromptHandler):
    """Alpaca rows as prompts for RL whose response is the right answer."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_dialogues(options.map_keys)


@register_handler
class AlpacaStyleInstructionHandler(InstructionHandler):
    """Alpaca rows as dialogues for SFT."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_dialogues(options.map_keys)


@register_handler
class AlpacaStylePairwiseHandler(PairHandler):
    """Alpaca rows with a chosen and a rejected answer, for reward models and DPO."""

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_pairs(options.map_keys)
