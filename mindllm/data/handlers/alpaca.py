"""Alpaca-style rows: instruction, input, output, system, history."""

from typing import NamedTuple

from mindllm.data.handlers.base import DropRow, HandlerOptions, MapKeys, register_handler
from mindllm.data.handlers.cells import mapped, required_text, text_cell
from mindllm.data.handlers.instructions import InstructionHandler
from mindllm.data.handlers.pairs import PairHandler
from mindllm.data.handlers.prompts import AnsweredPromptHandler, PromptHandler
from mindllm.data.messages import Message, Tools
from mindllm.data.rows import Row
from mindllm.errors import UserError

_ROLES = ("prompt", "query", "response", "system", "history")
_PAIR_ROLES = ("prompt", "query", "chosen", "rejected", "system", "history")


class _Columns(NamedTuple):
    """Which column plays which role; None = no such column is read."""

    prompt: str | None = None
    query: str | None = None
    response: str | None = None
    system: str | None = None
    history: str | None = None
    chosen: str | None = None
    rejected: str | None = None


_DEFAULT_COLUMNS = _Columns("instruction", "input", "output", "system", "history")
_DEFAULT_PAIR_COLUMNS = _DEFAULT_COLUMNS._replace(response=None, chosen="chosen", rejected="rejected")


class AlpacaRows:
    """The Alpaca row shape under a column mapping, which replaces the defaults (an empty name means none)."""

    def __init__(self, columns: _Columns, required: list[str]) -> None:
        self._columns = columns
        self.required = required
        self.consumed = {name for name in columns._replace(response=None) if name}

    @classmethod
    def for_prompts(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which only the prompt is used.

        Raises:
            UserError: unknown role, or no column for the prompt.
        """
        if map_keys is None:
            return cls(_DEFAULT_COLUMNS, ["instruction"])
        columns = _Columns(**mapped(map_keys, _ROLES))
        # The older form maps the response to the prompt's column; the response itself is never read.
        columns = columns._replace(prompt=columns.prompt or columns.response, response=None)
        if columns.prompt is None:
            raise UserError("--map-keys names no column for 'prompt'")
        return cls(columns, [name for name in columns if name])

    @classmethod
    def for_dialogues(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which prompt and response are used.

        Raises:
            UserError: unknown role, or no column for prompt or response.
        """
        if map_keys is None:
            return cls(_DEFAULT_COLUMNS, ["instruction", "output"])
        columns = _Columns(**mapped(map_keys, _ROLES, required=("prompt", "response")))
        return cls(columns, [name for name in columns if name])

    @classmethod
    def for_pairs(cls, map_keys: MapKeys | None) -> "AlpacaRows":
        """Rows of which two answers are compared.

        Raises:
            UserError: unknown role, or no column for prompt, chosen or rejected.
        """
        if map_keys is None:
            return cls(_DEFAULT_PAIR_COLUMNS, ["instruction", "chosen", "rejected"])
        columns = _Columns(**mapped(map_keys, _PAIR_ROLES, required=("prompt", "chosen", "rejected")))
        return cls(columns, [name for name in columns if name])

    def tools(self, row: Row) -> Tools:
        """None; see `RowShape.tools`."""
        return ()

    def prompt(self, row: Row) -> list[Message]:
        """System prompt, history and the row's question; see `PromptShape.prompt`."""
        system = text_cell(row, self._columns.system, "system")
        messages = [Message("system", system)] if system else []
        messages += self._history(row)
        messages.append(Message("user", self.prompt_text(row)))
        return messages

    def prompt_text(self, row: Row) -> str:
        """The instruction, with the input, if any, on the next line; see `PromptShape.prompt_text`."""
        parts = [text_cell(row, self._columns.prompt, "prompt"), text_cell(row, self._columns.query, "query")]
        if not any(part.strip() for part in parts):
            raise DropRow("null_prompt" if row.values.get(self._columns.prompt or "") is None else "empty_prompt")
        return "\n".join(part for part in parts if part)

    def dialogue(self, row: Row) -> list[Message]:
        """The prompt and its answer; see `DialogueShape.dialogue`."""
        return [*self.prompt(row), Message("assistant", self.reference(row))]

    def reference(self, row: Row) -> str:
        """The answer; see `AnsweredShape.reference`."""
        return required_text(row, self._columns.response, "response")

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The prompt with each of its two answers; see `PairShape.pair`."""
        prompt = self.prompt(row)
        chosen = Message("assistant", required_text(row, self._columns.chosen, "chosen"))
        rejected = Message("assistant", required_text(row, self._columns.rejected, "rejected"))
        return [*prompt, chosen], [*prompt, rejected]

    def _history(self, row: Row) -> list[Message]:
        turns = row.values.get(self._columns.history) if self._columns.history else None
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
