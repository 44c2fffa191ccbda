"""The parquet sidecar: extra columns, one row for each sample.

Rows come in batches whose column types are not known in advance (the first thousand cells may be null). So batches are
spooled with the types each one shows, and written to parquet once the types of all are known.
"""

import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from mindllm.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 8192  # rows; fixed, so that the file does not depend on how the batches were cut
_BUCKET = 2 * _ROW_GROUP  # rows sorted at a time
_PLACE = "__place__"  # column that says where a row goes
_LENGTH = struct.Struct("<Q")


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

    names = dict.fromkeys(name for row in rows for name in row)
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            raise UserError(
                f"column '{name}' holds values that do not go together: {_unlike(values) or error}"
            ) from error
    return pa.table(arrays, names=list(names))


def _unlike(values: Sequence[Any]) -> str | None:
    """Show two values that arrow does not put into one column, if the first one is among such."""
    import pyarrow as pa

    first, *others = [value for value in values if value is not None]
    for other in others:
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

    merged = pa.schema([])
    for schema in schemas:
        if schema == merged:
            continue
        try:
            merged = pa.unify_schemas([merged, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise UserError(f"an extra column holds values that do not go together: {error}") from error
    return merged


def _conform(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


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
