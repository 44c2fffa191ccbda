"""One input row, and what can be wrong with it."""

from collections.abc import Container
from typing import Any, NamedTuple

from mindllm.errors import RowError


class Row(NamedTuple):
    """One input row. `number` counts lines (jsonl, txt) or rows (the other types) from 1."""

    source: str
    number: int
    values: dict[str, Any]
    problem: str = ""  # why there are no values, for counting: "invalid_json"
    detail: str = ""  # the same in words
    has_schema: bool = False  # from a file that gives every object the keys of all, null where a row has none

    @property
    def where(self) -> str:
        """The row's place, as messages name it."""
        return f"{self.source}:{self.number}"

    def without_absent_keys(self, columns: Container[str]) -> "Row":
        """The row as it was before its file's schema gave the objects in some columns the keys of other rows.

        A null in such an object counts as an absent key, as for TRL's `remove_none_values`; nulls in lists stay.
        """
        if not self.has_schema:
            return self
        values = {name: _dense(value) if name in columns else value for name, value in self.values.items()}
        return self._replace(values=values, has_schema=False)

    def check(self) -> None:
        """Raise RowError when the row could not be read."""
        if self.problem:
            raise RowError(self.detail, self.problem)


def _dense(value: Any) -> Any:
    """A nested value without the keys whose value is null."""
    if isinstance(value, dict):
        return {key: _dense(item) for key, item in value.items() if item is not None}
    return [_dense(item) for item in value] if isinstance(value, list) else value
