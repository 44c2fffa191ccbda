"""One input row, and what can be wrong with it."""

from typing import Any, NamedTuple

from mindllm.errors import UserError


class Row(NamedTuple):
    """One input row. `number` counts lines (jsonl, txt) or rows (the other types) from 1."""

    source: str
    number: int
    values: dict[str, Any]
    problem: str = ""  # why there are no values, for counting: "invalid_json"
    detail: str = ""  # the same in words

    @property
    def where(self) -> str:
        """The row's place, as messages name it."""
        return f"{self.source}:{self.number}"

    def check(self) -> None:
        """Raise UserError when the row could not be read."""
        if self.problem:
            raise UserError(f"{self.detail}; --on-bad-row skip leaves such rows out and counts them")
