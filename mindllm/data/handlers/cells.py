"""Reading cells, and column mappings."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from mindllm.data.handlers.base import DropRow, MapKeys
from mindllm.data.messages import Tools
from mindllm.data.rows import Row
from mindllm.errors import UserError, did_you_mean


def mapped(map_keys: MapKeys, roles: Sequence[str], required: Iterable[str] = ()) -> dict[str, str | None]:
    """The column of each role under a mapping; None where it names none (an empty name means none).

    Raises:
        UserError: an unknown role, a required one without a column, or a column that is no name.
    """
    for role, column in map_keys.items():
        if role not in roles:
            raise UserError(
                f"--map-keys: unknown key '{role}'; known are {', '.join(roles)}{did_you_mean(role, roles)}"
            )
        if not isinstance(column, str):
            raise UserError(f"--map-keys: '{role}' must be a column name, found {column!r}")
    for role in required:
        if not map_keys.get(role):
            raise UserError(f"--map-keys names no column for '{role}'")
    return {role: map_keys.get(role) or None for role in roles}


def checked_text(value: Any, role: str) -> str:
    """A cell's text, "" for null.

    Raises:
        DropRow: the cell is no text, or none that has bytes (a lone surrogate has none, so no tokens).
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DropRow(f"{role}_not_text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DropRow(f"{role}_not_unicode") from error
    return value


def text_cell(row: Row, column: str | None, role: str) -> str:
    """The text in a column, "" where there is no such column or it is null. Raises DropRow as `checked_text`."""
    return checked_text(row.values.get(column) if column else None, role)


def required_text(row: Row, column: str | None, role: str) -> str:
    """The text in a column. Raises DropRow when it is null, empty, or as `checked_text`."""
    text = text_cell(row, column, role)
    if not text.strip():
        raise DropRow(f"null_{role}" if row.values.get(column or "") is None else f"empty_{role}")
    return text


def tools_cell(row: Row, column: str | None) -> Tools:
    """The tools in a column: a list, or one as JSON text; () where there are none.

    Raises:
        DropRow: the cell is neither.
    """
    value = row.values.get(column) if column else None
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise DropRow("invalid_tools") from error
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise DropRow("invalid_tools")
    return value
