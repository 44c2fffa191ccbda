"""The parquet sidecar: types over batches, nulls, and bytes that do not depend on the batches."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mindllm.data.sidecar import Spool, write_sidecar
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


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        {"text": "é\n", "number": 1, "flag": True, "share": 0.5, "list": ["a", "b"], "nested": {"x": [1], "y": "z"}},
        {"text": None, "number": -5, "flag": None, "share": 1.0, "list": [], "nested": {"x": [], "y": None}},
    ]
    path, nulls = write(tmp_path, rows)
    assert pq.read_table(path).to_pylist() == rows
    assert nulls == {"text": 1, "number": 0, "flag": 1, "share": 0, "list": 0, "nested": 0}


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
