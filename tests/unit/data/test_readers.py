"""Rows out of files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data.readers import columns_of, find_inputs
from mindllm.errors import UserError


def values(*inputs: Path | str) -> list[object]:
    files = find_inputs([str(name) for name in inputs])
    return [row.values["n"] for row in files.rows(0, files.total)]


def write_parquet(path: Path, numbers: list[int], row_group_size: int = 3) -> Path:
    pq.write_table(pa.table({"n": numbers}), path, row_group_size=row_group_size)
    return path


def test_json_is_a_list_an_object_or_objects_in_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, expected in [
        ('[{"n": 1}, {"n": 2}]', [1, 2]),
        ('{\n "n": 1\n}\n', [1]),
        ('{"n": 1}\n{"n": 2}\n', [1, 2]),
        ('  [ {"n": 1} ]  ', [1]),
    ]:
        path.write_text(text)
        assert values(path) == expected


def test_jsonl_survives_blank_lines_bom_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\r\n{"n": 2}\r\n   \n{"n": 3}')
    assert values(path) == [1, 2, 3]
    assert [row.number for row in find_inputs([str(path)]).rows(0, 3)] == [1, 3, 5]


def test_parquet_rows_are_numbered(tmp_path: Path) -> None:
    files = find_inputs([str(write_parquet(tmp_path / "a.parquet", list(range(10))))])
    assert [(row.number, row.values["n"]) for row in files.rows(4, 9)] == [(n + 1, n) for n in range(4, 9)]


def test_a_directory_is_read_whole_in_name_order_whatever_the_file_types(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n')
    (tmp_path / "a.json").write_text('[{"n": 1}]')
    (tmp_path / "sub").mkdir()
    write_parquet(tmp_path / "sub" / "c.parquet", [3])
    (tmp_path / ".hidden").write_text("not data")
    assert values(tmp_path) == [1, 2, 3]


def test_an_unknown_file_in_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "notes.docx").write_text("x")
    with pytest.raises(UserError, match=r"unknown type: .*notes\.docx; allowed are \.json, \.jsonl, \.parquet"):
        find_inputs([str(tmp_path)])


def test_several_files_are_given_by_space_or_comma(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"n": number}))
    assert values(tmp_path / "3.jsonl", f"{tmp_path / '1.jsonl'},{tmp_path / '2.jsonl'}") == [3, 1, 2]


@pytest.mark.parametrize(("start", "stop"), [(0, 24), (0, 5), (5, 12), (7, 7), (11, 24), (23, 24)])
def test_any_range_of_rows_crosses_file_borders(tmp_path: Path, start: int, stop: int) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n\n' for n in range(6)))
    write_parquet(tmp_path / "b.parquet", list(range(6, 16)))
    (tmp_path / "c.json").write_text(json.dumps([{"n": n} for n in range(16, 24)]))
    files = find_inputs([str(tmp_path)])
    assert [row.values["n"] for row in files.rows(start, stop)] == list(range(start, stop))


def test_columns_are_those_of_the_first_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"y": 2, "x": 1}\n')
    assert columns_of(tmp_path / "a.jsonl") == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"n": 1}\n{"n": \n', r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"n": 1}\n[1]\n', r"a\.jsonl:2: a row must be a JSON object, found list"),
        ("a.jsonl", b'{"n": 1}\n{"n": "\xff"}\n', r"a\.jsonl:2: not UTF-8"),
        ("a.json", b'[{"n": 1},\n {"n": }]', r"a\.json:2: not valid JSON"),
        ("a.json", b"\xff\xfe", r"a\.json: not UTF-8"),
        ("a.parquet", b"PAR1 no more", r"a\.parquet: not a readable parquet file"),
        ("a.jsonl", b"\n\n", r"has no rows"),
        ("a.csv", b"n\n1\n", r"files of type '\.csv' are not read"),
    ],
)
def test_damaged_input_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        values(tmp_path / name)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"--input nowhere\.jsonl: no such file or directory"):
        find_inputs(["nowhere.jsonl"])
