"""Alpaca-style rows: instruction, input, output, system, history."""

from collections.abc import Mapping

from mindllm.data.handlers.base import DropRow, HandlerOptions, MapKeys, register_handler
from mindllm.data.handlers.cells import checked_text, columns_that_must_exist, mapped, required_text, text_cell
from mindllm.data.handlers.instructions import InstructionHandler
from mindllm.data.handlers.pairs import PairHandler
from mindllm.data.handlers.prompts import AnsweredPromptHandler, PromptHandler
from mindllm.data.handlers.turns import (
    ANY_STYLE,
    answered,
    check_order,
    holds_turns,
    is_conversation,
    read_answer,
    read_prompt,
)
from mindllm.data.messages import Message, Tools
from mindllm.data.rows import Row

_PROMPT_COLUMNS: dict[str, str | None] = {
    "prompt": "instruction",
    "query": "input",
    "system": "system",
    "history": "history",
}
_DIALOGUE_COLUMNS = {**_PROMPT_COLUMNS, "response": "output"}
_PAIR_COLUMNS = {**_PROMPT_COLUMNS, "chosen": "chosen", "rejected": "rejected"}


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
        self.consumed = {column for role in _PROMPT_COLUMNS if (column := self._columns[role])}

    @classmethod
    def for_prompts(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which only the prompt is used. A column for the response may be named, but is not read.

        Raises:
            UserError: as `__init__`.
        """
        mapped(map_keys, _DIALOGUE_COLUMNS)  # refuses names that are wrong anywhere
        read = {role: column for role, column in (map_keys or {}).items() if role != "response"}
        return cls(read, _PROMPT_COLUMNS)

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
        """None; see `RowShape.tools`."""
        return ()

    def prompt(self, row: Row) -> list[Message]:
        """System prompt, history and the row's question; see `PromptShape.prompt`."""
        asked, system = self._asked(row), self._system(row)
        if asked[0].role == "system":
            system, asked = asked[:1], asked[1:]
        messages = [*system, *self._history(row), *asked]
        check_order(messages)
        return messages

    def dialogue(self, row: Row) -> list[Message]:
        """The prompt and its answer; see `DialogueShape.dialogue`."""
        return [*self.prompt(row), Message("assistant", self.reference(row))]

    def reference(self, row: Row) -> str:
        """The answer; see `AnsweredShape.reference`."""
        return required_text(row, self._columns["response"], "response")

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The prompt with each of its two answers, which may repeat it; see `PairShape.pair`."""
        chosen, rejected = (
            read_answer(row.values.get(self._columns[side] or ""), side, ANY_STYLE) for side in ("chosen", "rejected")
        )
        repeat_it = is_conversation(chosen) and is_conversation(rejected)
        has_none = repeat_it and row.values.get(self._columns["prompt"] or "") in (None, "")
        prompt = self._system(row) if has_none else self.prompt(row)
        return answered(prompt, chosen, "chosen")[0], answered(prompt, rejected, "rejected")[0]

    def _asked(self, row: Row) -> list[Message]:
        """The question: one turn or, where its column holds a list of turns, those."""
        value = row.values.get(self._columns["prompt"] or "")
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
        turns = row.values.get(self._columns["history"]) if self._columns["history"] else None
        if not isinstance(turns or [], list):
            raise DropRow("invalid_history")
        messages = []
        for pair in turns or []:
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
