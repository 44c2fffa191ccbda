"""Reading cells, and column mappings."""

from collections.abc import Iterable, Mapping
from typing import Any

from mindllm.errors import UserError, did_you_mean
from mindllm.preprocess.handlers.base import DropRow, MapKeys, json_cell, parsed
from mindllm.preprocess.inputs.rows import Row
from mindllm.templates.messages import Tools


def mapped(
    map_keys: MapKeys | None, defaults: Mapping[str, str | None], required: Iterable[str] = ()
) -> dict[str, str | None]:
    """The column of each role: the one a mapping names, else the default; None where there is none.

    A default gives way where the mapping reads its column in another role: ``{"prompt": "input"}`` must not make
    `input` the query too.

    Args:
        map_keys: a column for some roles, as the user gave it; an empty name removes a role's column.
        defaults: every role there is, with the column it is read from unless the mapping says otherwise.
        required: roles that must have a column.

    Raises:
        UserError: an unknown role, a required one without a column, or a column that is no name.
    """
    given = map_keys or {}
    for role, column in given.items():
        if role not in defaults:
            raise UserError(
                f"--map-keys: unknown key '{role}'; known are {', '.join(defaults)}{did_you_mean(role, defaults)}"
            )
        if not isinstance(column, str):
            raise UserError(f"--map-keys: '{role}' must be a column name, found {column!r}")
    taken = set(given.values())
    columns = {
        role: (given[role] or None) if role in given else (None if default in taken else default)
        for role, default in defaults.items()
    }
    for role in required:
        if columns[role] is None:
            raise UserError(f"--map-keys leaves no column for '{role}'")
    return columns


def columns_that_must_exist(
    map_keys: MapKeys | None, columns: Mapping[str, str | None], required: Iterable[str] = ()
) -> list[str]:
    """The columns of `mapped` roles that are required or that the mapping names; other defaults may be absent."""
    must = (*required, *(map_keys or {}))
    return sorted({column for role in must if (column := columns.get(role))})


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
    """The tools in a column: one or a list, as objects or as JSON text; () where there are none.

    Raises:
        DropRow: the cell is nothing of that kind.
    """
    value = json_cell(row, column, "tools")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return [_as_function(parsed(tool, "tools")) for tool in listed] or ()


def _as_function(tool: Any) -> dict[str, Any]:
    """A tool as chat templates expect it; a bare description (name, parameters) is wrapped as a function."""
    if not isinstance(tool, dict) or not tool.keys() & {"name", "function", "type"}:
        raise DropRow("invalid_tools")
    is_bare = isinstance(tool.get("name"), str) and not isinstance(tool.get("function"), dict)
    if not is_bare or tool.get("type") not in (None, "function"):
        return tool
    names = {"input_schema": "parameters", "inputSchema": "parameters"}  # of other vendors' and of MCP descriptions
    described = {names.get(key, key): value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": described}
