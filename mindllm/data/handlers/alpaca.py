"""Alpaca-style rows: instruction, input, output, system, history."""

from collections.abc import Mapping

from mindllm.data.handlers.base import DropRow, HandlerOptions, MapKeys, register_handler
from mindllm.data.handlers.cells import columns_that_must_exist, mapped, required_text, text_cell
from mindllm.data.handlers.instructions import InstructionHandler
from mindllm.data.handlers.pairs import PairHandler
from mindllm.data.handlers.prompts import AnsweredPromptHandler, PromptHandler
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
        return cls(map_keys, _PAIR_COLUMNS, ("prompt", "chosen", "rejected"))

    def tools(self, row: Row) -> Tools:
        """None; see `RowShape.tools`."""
        return ()

    def prompt(self, row: Row) -> list[Message]:
        """System prompt, history and the row's question; see `PromptShape.prompt`."""
        system = text_cell(row, self._columns["system"], "system")
        messages = [Message("system", system)] if system else []
        messages += self._history(row)
        messages.append(Message("user", self.prompt_text(row)))
        return messages

    def prompt_text(self, row: Row) -> str:
        """The instruction, with the input, if any, on the next line; see `PromptShape.prompt_text`."""
        parts = [text_cell(row, self._columns["prompt"], "prompt"), text_cell(row, self._columns["query"], "query")]
        if not any(part.strip() for part in parts):
            raise DropRow("null_prompt" if row.values.get(self._columns["prompt"] or "") is None else "empty_prompt")
        return "\n".join(part for part in parts if part)

    def dialogue(self, row: Row) -> list[Message]:
        """The prompt and its answer; see `DialogueShape.dialogue`."""
        return [*self.prompt(row), Message("assistant", self.reference(row))]

    def reference(self, row: Row) -> str:
        """The answer; see `AnsweredShape.reference`."""
        return required_text(row, self._columns["response"], "response")

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The prompt with each of its two answers; see `PairShape.pair`."""
        prompt = self.prompt(row)
        chosen = Message("assistant", required_text(row, self._columns["chosen"], "chosen"))
        rejected = Message("assistant", required_text(row, self._columns["rejected"], "rejected"))
        return [*prompt, chosen], [*prompt, rejected]

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
