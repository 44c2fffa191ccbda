"""The parquet sidecar: extra columns, one row for each sample.

Rows come in batches whose column types are not known in advance (the first thousand cells may be null). So batches are
spooled with the types each one shows, and written to parquet once the types of all are known.

Parquet has one set of keys for all objects of a column and cannot tell an absent key from a null one. So columns that
hold objects, or lists that are not all of one type, are written as JSON text, which the field's metadata says, and read
back by `read_rows`.
"""

import base64
import json
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from mindllm.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

# Columns of prompts that are no columns of the input.
PROMPT_COLUMN = "prompt"  # the last question
MESSAGES_COLUMN = "prompt_messages"  # all turns, where there are others
TOOLS_COLUMN = "prompt_tools"  # the tools, where there are any

_ROW_GROUP = 8192  # rows; fixed, so that the file does not depend on how the batches were cut
_BUCKET = 2 * _ROW_GROUP  # rows sorted at a time
_PLACE = "__place__"  # column that says where a row goes
_LENGTH = struct.Struct("<Q")
_JSON = {b"mindllm.encoding": b"json"}  # metadata of a field whose cells are JSON text
_UNLIKE = "holds values that do not go together"
_NESTED = (dict, list, tuple)
_ARROW_VALUE = "mindllm.arrow"  # key of a value within JSON that JSON has no form for


class Spool:
    """An append-only file of batches."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add rows.

        Raises:
            UserError: a column holds values of types that do not go together.
        """
        if not rows:
            return
        _write(self._file, _table(rows))


def write_sidecar(path: Path, spools: Sequence[Path], samples: np.ndarray | None = None) -> dict[str, int]:
    """Write the rows of all spools to one parquet file, a row group at a time.

    Args:
        path: where to; files beside it are used on the way.
        spools: where from.
        samples: numbers of the rows to write, in this order, int64; None = all as they come.

    Returns:
        For each column the number of null cells.

    Raises:
        UserError: a column holds values of types that do not go together.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _common_schema(batch.schema for spool in spools for batch in _read(spool))
    nulls = dict.fromkeys(schema.names, 0)
    tables = (_conform(batch, schema) for spool in spools for batch in _read(spool))
    ordered = tables if samples is None else _reorder(tables, samples, path.with_suffix(".buckets"))
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for table in _regroup(ordered):
                writer.write_table(table, row_group_size=_ROW_GROUP)
                for name in schema.names:
                    nulls[name] += table[name].null_count
    except (pa.ArrowException, NotImplementedError) as error:
        raise UserError(f"the extra columns do not fit into parquet: {error}") from error
    return nulls


def read_rows(table: "pa.Table") -> list[dict[str, Any]]:
    """The rows of a sidecar, or of a part of it, with the values that were given to `Spool.append`."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for field in table.schema:
        if _is_json(field):
            columns[field.name] = [None if cell is None else _from_json(cell) for cell in columns[field.name]]
    return [{name: cells[place] for name, cells in columns.items()} for place in range(table.num_rows)]


def list_columns(table: "pa.Table") -> list[str]:
    """Names of the columns in which a cell is a list, or the text of a JSON list of texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = []
    for field in table.schema:
        is_list = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        if not is_list and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            opening = "[" if _is_json(field) else '["'
            is_list = bool(pc.any(pc.starts_with(table[field.name], pattern=opening)).as_py())
        found += [field.name] * is_list
    return found


def blank_rows(table: "pa.Table", name: str) -> np.ndarray:
    """Numbers of the rows in which a column holds blank text, an empty list or no number (NaN), int64; not of nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells, kind = table[name], table.schema.field(name).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        is_blank = pc.match_substring_regex(cells, pattern=r"^\s*(\[\s*\])?\s*$")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        is_blank = pc.equal(pc.list_value_length(cells), 0)
    elif pa.types.is_floating(kind):
        is_blank = pc.is_nan(cells)
    else:
        return np.zeros(0, np.int64)
    return np.flatnonzero(is_blank.fill_null(False).to_numpy())


def _reorder(tables: Iterable["pa.Table"], samples: np.ndarray, directory: Path) -> Iterator["pa.Table"]:
    """Rows in another order, with the memory of one bucket: first to the bucket of their new place, then to the place.

    Args:
        tables: all rows, in order.
        samples: numbers of the rows wanted, int64.
        directory: where the buckets lie for a while.
    """
    import pyarrow as pa

    directory.mkdir()
    places = np.argsort(samples, kind="stable")
    wanted = samples[places]
    first = 0
    for table in tables:
        inside = slice(*np.searchsorted(wanted, [first, first + len(table)]))
        buckets = places[inside] // _BUCKET
        for bucket in np.unique(buckets).tolist():
            chosen = buckets == bucket
            rows = table.take(pa.array(wanted[inside][chosen] - first))
            rows = rows.append_column(_PLACE, pa.array(places[inside][chosen]))
            with (directory / str(bucket)).open("ab") as file:
                _write(file, rows)
        first += len(table)
    for bucket in range(-(-len(samples) // _BUCKET)):
        rows = pa.concat_tables(_read(directory / str(bucket)))
        yield rows.sort_by(_PLACE).drop_columns([_PLACE])
    shutil.rmtree(directory)


def _table(rows: list[dict[str, Any]]) -> "pa.Table":
    import pyarrow as pa

    arrays, fields = [], []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            is_json = _needs_json(values)
            arrays.append(_json_array(values) if is_json else pa.array(values))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            raise UserError(f"column '{name}' {_UNLIKE}: {_unlike(values) or error}") from error
        fields.append(pa.field(name, arrays[-1].type, metadata=_JSON if is_json else None))
    return pa.table(arrays, schema=pa.schema(fields))


def _needs_json(values: Sequence[Any]) -> bool:
    """Whether a column holds objects or lists that arrow would change: it gives all of them one type.

    Raises:
        pa.ArrowException: some values are objects or lists, and others are not.
    """
    import pyarrow as pa

    found = [value for value in values if value is not None]
    nested = [isinstance(value, _NESTED) for value in found]
    if not any(nested):
        return False
    if not all(nested):
        raise pa.ArrowInvalid("objects or lists, and values that are neither")
    if len({kind for value in found for kind in _leaf_types(value)}) > 1 or any(map(_has_object, found)):
        return True
    try:
        pa.array(found)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return True
    return False


def _leaf_types(value: Any) -> Iterator[type]:
    """Types of the values within lists, nulls apart."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaf_types(item)
    elif value is not None:
        yield type(value)


def _has_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and any(map(_has_object, value)))


def _json_array(values: Sequence[Any]) -> "pa.Array":
    """Cells as JSON text; null cells stay null."""
    import pyarrow as pa

    return pa.array([None if value is None else json.dumps(value, default=_arrow_value) for value in values])


def _arrow_value(value: Any) -> dict[str, str]:
    """A value that JSON has no form for (bytes, dates, ...), which typed files may have within their objects."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array([value])})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {_ARROW_VALUE: base64.b64encode(sink.getvalue()).decode("ascii")}


def _from_json(text: str) -> Any:
    return json.loads(text, object_hook=_from_arrow_value)


def _from_arrow_value(found: dict[str, Any]) -> Any:
    import pyarrow as pa

    if found.keys() != {_ARROW_VALUE}:
        return found
    with pa.ipc.open_stream(base64.b64decode(found[_ARROW_VALUE])) as stream:
        return stream.read_all()["value"][0].as_py()


def _is_json(field: "pa.Field") -> bool:
    return bool(field.metadata == _JSON)


def _unlike(values: Sequence[Any]) -> str | None:
    """Show two values that arrow does not put into one column, if the first one is among such."""
    import pyarrow as pa

    first, *others = [value for value in values if value is not None]
    for other in others:
        if isinstance(first, _NESTED) != isinstance(other, _NESTED):
            return f"{first!r:.60} and {other!r:.60}"
        try:
            pa.array([first, other])
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            return f"{first!r:.60} and {other!r:.60}"
    return None


def _write(file: IO[bytes], table: "pa.Table") -> None:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    file.write(_LENGTH.pack(data.size))
    file.write(data)


def _read(spool: Path) -> Iterator["pa.Table"]:
    import pyarrow as pa

    with spool.open("rb") as file:
        while head := file.read(_LENGTH.size):
            with pa.ipc.open_stream(file.read(_LENGTH.unpack(head)[0])) as stream:
                yield stream.read_all()


def _common_schema(schemas: Iterable["pa.Schema"]) -> "pa.Schema":
    import pyarrow as pa

    merged: dict[str, pa.Field] = {}
    for schema in schemas:
        for field in schema:
            known = merged.get(field.name, field)
            merged[field.name] = known if known.equals(field, check_metadata=True) else _common_field(known, field)
    return pa.schema(merged.values())


def _common_field(one: "pa.Field", other: "pa.Field") -> "pa.Field":
    """The field for the values of both. Lists of different types become JSON, as they would have in one batch."""
    import pyarrow as pa

    if pa.types.is_null(one.type) or pa.types.is_null(other.type):
        return one if pa.types.is_null(other.type) else other
    nested, other_nested = (_is_json(field) or pa.types.is_list(field.type) for field in (one, other))
    if nested != other_nested:
        raise UserError(f"column '{one.name}' {_UNLIKE}: objects or lists, and values that are neither")
    try:
        schemas = [pa.schema([one]), pa.schema([other])]
        return pa.unify_schemas(schemas, promote_options="default" if nested else "permissive").field(0)
    except pa.ArrowException as error:
        if nested:
            return pa.field(one.name, pa.string(), metadata=_JSON)
        raise UserError(f"column '{one.name}' {_UNLIKE}: {one.type} and {other.type}") from error


def _conform(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    return pa.table([_conform_column(table, field) for field in schema], schema=schema)


def _conform_column(table: "pa.Table", field: "pa.Field") -> "pa.ChunkedArray | pa.Array":
    import pyarrow as pa

    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    if _is_json(field) and not _is_json(table.schema.field(field.name)):
        return _json_array(table[field.name].to_pylist())
    return table[field.name].cast(field.type)


def _regroup(tables: Iterable["pa.Table"]) -> Iterator["pa.Table"]:
    """The same rows in tables of `_ROW_GROUP` rows (the last may be shorter)."""
    import pyarrow as pa

    waiting: pa.Table | None = None
    for table in tables:
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        while len(waiting) >= _ROW_GROUP:
            yield waiting.slice(0, _ROW_GROUP).combine_chunks()
            waiting = waiting.slice(_ROW_GROUP)
    if waiting is not None and len(waiting):
        yield waiting.combine_chunks()
