"""Alpaca-style rows: instruction, input, output, system, history."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mindllm.data.handlers.base import DropRow, register_handler
from mindllm.data.handlers.instructions import InstructionHandler
from mindllm.data.handlers.pairs import PairHandler
from mindllm.data.handlers.prompts import PromptHandler
from mindllm.data.readers import Row
from mindllm.data.templates import Message
from mindllm.errors import UserError, did_you_mean

_ROLES = ("prompt", "query", "response", "system", "history")
_PAIR_ROLES = ("prompt", "query", "chosen", "rejected", "system", "history")


class _Columns(NamedTuple):
    """Which column plays which role; None = no such column is read."""

    prompt: str | None
    query: str | None
    response: str | None
    system: str | None
    history: str | None
    chosen: str | None = None
    rejected: str | None = None


_DEFAULT_COLUMNS = _Columns("instruction", "input", "output", "system", "history")
_DEFAULT_PAIR_COLUMNS = _Columns("instruction", "input", None, "system", "history", "chosen", "rejected")


class AlpacaRows:
    """The Alpaca row shape under a column mapping, which replaces the defaults (an empty name means none)."""

    def __init__(self, columns: _Columns, required: list[str]) -> None:
        self._columns = columns
        self.required = required
        self.consumed = {name for name in columns._replace(response=None) if name}

    @classmethod
    def for_prompts(cls, map_keys: Mapping[str, str] | None) -> "AlpacaRows":
        """Rows of which only the prompt is used.

        Raises:
            UserError: unknown role, or no column for the prompt.
        """
        if map_keys is None:
            return cls(_DEFAULT_COLUMNS, ["instruction"])
        columns = _mapped_columns(map_keys, _ROLES)
        # The older form maps the response to the prompt's column; the response itself is never read.
        columns = columns._replace(prompt=columns.prompt or columns.response, response=None)
        if columns.prompt is None:
            raise UserError("--map-keys names no column for 'prompt'")
        return cls(columns, [name for name in columns if name])

    @classmethod
    def for_dialogues(cls, map_keys: Mapping[str, str] | None) -> "AlpacaRows":
        """Rows of which the answer is trained.

        Raises:
            UserError: unknown role, or no column for prompt or response.
        """
        if map_keys is None:
            return cls(_DEFAULT_COLUMNS, ["instruction", "output"])
        columns = _mapped_columns(map_keys, _ROLES, required=("prompt", "response"))
        return cls(columns, [name for name in columns if name])

    @classmethod
    def for_pairs(cls, map_keys: Mapping[str, str] | None) -> "AlpacaRows":
        """Rows of which two answers are compared.

        Raises:
            UserError: unknown role, or no column for prompt, chosen or rejected.
        """
        if map_keys is None:
            return cls(_DEFAULT_PAIR_COLUMNS, ["instruction", "chosen", "rejected"])
        columns = _mapped_columns(map_keys, _PAIR_ROLES, required=("prompt", "chosen", "rejected"))
        return cls(columns, [name for name in columns if name])

    def prompt(self, row: Row) -> list[Message]:
        """System prompt, history and the row's question; see `PromptShape.prompt`."""
        system = _text(row, self._columns.system, "system")
        messages = [Message("system", system)] if system else []
        messages += self._history(row)
        messages.append(Message("user", self.prompt_text(row)))
        return messages

    def prompt_text(self, row: Row) -> str:
        """The instruction, with the input, if any, on the next line; see `PromptShape.prompt_text`."""
        parts = [_text(row, self._columns.prompt, "prompt"), _text(row, self._columns.query, "query")]
        if not any(part.strip() for part in parts):
            raise DropRow("null_prompt" if row.values.get(self._columns.prompt or "") is None else "empty_prompt")
        return "\n".join(part for part in parts if part)

    def dialogue(self, row: Row) -> list[Message]:
        """The prompt and its answer; see `DialogueShape.dialogue`."""
        return [*self.prompt(row), _answer(row, self._columns.response, "response")]

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The prompt with each of its two answers; see `PairShape.pair`."""
        prompt = self.prompt(row)
        chosen = _answer(row, self._columns.chosen, "chosen")
        return [*prompt, chosen], [*prompt, _answer(row, self._columns.rejected, "rejected")]

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


def _mapped_columns(map_keys: Mapping[str, str], roles: Sequence[str], required: Sequence[str] = ()) -> _Columns:
    for role in map_keys:
        if role not in roles:
            raise UserError(
                f"--map-keys: unknown key '{role}'; known are {', '.join(roles)}{did_you_mean(role, roles)}"
            )
    for role in required:
        if not map_keys.get(role):
            raise UserError(f"--map-keys names no column for '{role}'")
    return _Columns(*(map_keys.get(role) or None for role in _Columns._fields))


def _answer(row: Row, column: str | None, role: str) -> Message:
    text = _text(row, column, role)
    if not text.strip():
        raise DropRow(f"null_{role}" if row.values.get(column or "") is None else f"empty_{role}")
    return Message("assistant", text)


def _text(row: Row, column: str | None, role: str) -> str:
    value = row.values.get(column) if column else None
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DropRow(f"{role}_not_text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DropRow(f"{role}_not_unicode") from error  # a lone surrogate has no bytes, so no tokens
    return value


@register_handler
class PPOAlpacaStyleInstructionHandler(PromptHandler):
    """Alpaca rows as prompts for RL."""

    @classmethod
    def make_shape(cls, map_keys: Mapping[str, str] | None) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_prompts(map_keys)


@register_handler
class AlpacaStyleInstructionHandler(InstructionHandler):
    """Alpaca rows as dialogues for SFT."""

    @classmethod
    def make_shape(cls, map_keys: Mapping[str, str] | None) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_dialogues(map_keys)


@register_handler
class AlpacaStylePairwiseHandler(PairHandler):
    """Alpaca rows with a chosen and a rejected answer, for reward models and DPO."""

    @classmethod
    def make_shape(cls, map_keys: Mapping[str, str] | None) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_pairs(map_keys)
