"""The parquet sidecar: types over batches, nulls, and bytes that do not depend on the batches."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data.sidecar import Spool, blank_rows, list_columns, read_rows, write_sidecar
from mindllm.errors import UserError


def write(directory: Path, *batches: list[dict[str, Any]], spools: int = 1) -> tuple[Path, dict[str, int]]:
    directory.mkdir(exist_ok=True)
    paths = [directory / f"{number}.spool" for number in range(spools)]
    for number, path in enumerate(paths):
        with path.open("wb") as file:
            for batch in batches[number * len(batches) // spools : (number + 1) * len(batches) // spools]:
                Spool(file).append(batch)
    target = directory / "columns.parquet"
    return target, write_sidecar(target, paths)


def read(path: Path) -> list[dict[str, Any]]:
    return read_rows(pq.read_table(path))


def test_rows_of_a_table_without_columns_are_empty() -> None:
    assert read_rows(pa.table({"a": [1, 2]}).select([])) == [{}, {}]


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        {"text": "é\n", "number": 1, "flag": True, "share": 0.5, "list": ["a", "b"], "nested": {"x": [1], "y": "z"}},
        {"text": None, "number": -5, "flag": None, "share": 1.0, "list": [], "nested": {"x": [], "y": None}},
    ]
    path, nulls = write(tmp_path, rows)
    assert read(path) == rows
    assert nulls == {"text": 1, "number": 0, "flag": 1, "share": 0, "list": 0, "nested": 0}
    assert pq.read_table(path)["list"].to_pylist() == [["a", "b"], []], "lists of one type stay lists in the file"


def test_columns_of_lists_are_known_however_they_are_written(tmp_path: Path) -> None:
    row = {"text": "[0, 1]", "one_type": ["a"], "mixed": ["six", 6], "object": {"a": [1]}, "json": '["six", "6"]'}
    path, _ = write(tmp_path, [row])
    assert list_columns(pq.read_table(path)) == ["one_type", "mixed", "json"]


def test_blank_cells_are_found_in_columns_of_every_type(tmp_path: Path) -> None:
    columns = {
        "text": ["4", " \n", "", None, "[]"],
        "list": [["4"], [], [""], None, []],
        "mixed": [["4", 4], [], ["", 4], None, []],
        "share": [4.0, 0.0, float("nan"), None, float("nan")],
        "number": [4, 0, 0, None, 0],
    }
    path, _ = write(tmp_path, [{name: cells[row] for name, cells in columns.items()} for row in range(5)])
    found = {name: blank_rows(pq.read_table(path), name).tolist() for name in columns}
    assert found == {"text": [1, 2, 4], "list": [1, 4], "mixed": [1, 4], "share": [2, 4], "number": []}


NESTED: list[Any] = [
    {"seed": 1, "options": {}},
    {},
    {"seed": 2.5, "hint": None},
    {"options": {"deep": [{"a": 1}, {"b": [True, None, "é😀\ud800"]}]}, "big": 2**70},
    None,
    [],
    [{"name": "add"}, {"name": "find", "arguments": {"where": "x"}}],
    [1, 2.5, "three", None],
    [["a"], "b"],
    {"bytes": b"\x00\xff", "on": datetime(2024, 2, 29, 12), "price": Decimal("0.10")},
]


@pytest.mark.parametrize("batch_size", [1, 3, len(NESTED)])
def test_objects_keep_their_own_keys_and_types(tmp_path: Path, batch_size: int) -> None:
    rows = [{"settings": value} for value in NESTED]
    path, nulls = write(tmp_path / "cut", *[rows[n : n + batch_size] for n in range(0, len(rows), batch_size)])
    found = read(path)
    assert repr(found) == repr(rows) and nulls == {"settings": 1}
    assert path.read_bytes() == write(tmp_path / "whole", rows)[0].read_bytes()
    write_sidecar(tmp_path / "reordered.parquet", [tmp_path / "cut" / "0.spool"], np.array([9, 0]))
    assert repr(read(tmp_path / "reordered.parquet")) == repr([rows[9], rows[0]])


def test_a_list_column_may_hold_objects_late(tmp_path: Path) -> None:
    batches: list[list[dict[str, Any]]] = [[{"a": None}], [{"a": [1]}, {"a": []}], [{"a": [0.5]}], [{"a": [{"b": 1}]}]]
    assert repr(read(write(tmp_path, *batches)[0])) == repr([row for batch in batches for row in batch])


def test_a_type_that_shows_late_holds_for_all_rows(tmp_path: Path) -> None:
    path, nulls = write(tmp_path, [{"a": None}], [{"a": 1, "b": "x"}], [{"a": 2.5}])
    assert pq.read_table(path).to_pylist() == [{"a": None, "b": None}, {"a": 1.0, "b": "x"}, {"a": 2.5, "b": None}]
    assert nulls == {"a": 1, "b": 2}


def test_the_file_does_not_depend_on_batches_and_parts(tmp_path: Path) -> None:
    rows = [{"n": n, "text": f"row {n}", "late": n if n > 9000 else None} for n in range(20000)]
    cut = [rows[start : start + 256] for start in range(0, len(rows), 256)]
    odd = [rows[start : start + 777] for start in range(0, len(rows), 777)]
    files = [write(tmp_path / "a", *cut), write(tmp_path / "b", *cut, spools=5), write(tmp_path / "c", *odd)]
    assert len({path.read_bytes() for path, _ in files}) == 1


@pytest.mark.parametrize("batches", [[[{"a": 1}, {"a": 2.5}, {"a": "x"}]], [[{"a": 1}], [{"a": "x"}]]])
def test_values_that_do_not_go_together_are_refused(tmp_path: Path, batches: list[list[dict[str, Any]]]) -> None:
    with pytest.raises(UserError, match="do not go together: (.*int64|1 and 'x'$)"):
        write(tmp_path, *batches)


@pytest.mark.parametrize("nested", [{"b": 1}, [1]])
def test_objects_and_lists_do_not_go_together_with_other_values(tmp_path: Path, nested: Any) -> None:
    rows = [{"a": nested}, {"a": "x"}]
    with pytest.raises(UserError, match="column 'a' holds values that do not go together: [{[].* and 'x'$"):
        write(tmp_path, rows)
    with pytest.raises(UserError, match="column 'a' holds .* together: objects or lists, and values that are neither"):
        write(tmp_path, rows[:1], rows[1:])
