"""Rows out of files."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.errors import UserError
from mindllm.preprocess.inputs import FORMATS, format_of
from mindllm.preprocess.inputs.readers import check_columns, find_inputs
from mindllm.preprocess.inputs.rows import Row


def values(*inputs: Path | str) -> list[object]:
    files = find_inputs([str(name) for name in inputs])
    rows = list(files.rows(0, files.total))
    for row in rows:
        if row.problem:
            raise UserError(f"{row.where}: {row.detail}")
    return [row.values["n"] for row in rows]


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
    with pytest.raises(UserError, match=r"unknown type: .*notes\.docx; allowed are \.json, \.jsonl, \.csv, \.txt, "):
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


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_column_may_appear_late_in_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text('{"question": 1}\n' * 1000 + '{"answer": 2, "question": 1}\n')
    check_columns(path, ["question", "answer"])
    expected = r"has no column 'anser' .*; columns are question, answer; did you mean 'answer'\?"
    with pytest.raises(UserError, match=expected):
        check_columns(path, ["question", "anser"])


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.txt"])
def test_the_columns_of_a_table_are_known_from_its_first_row(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    write_parquet(path, [1, 2]) if name == "a.parquet" else write_as(path, [1, 2])
    kind = type(format_of(path))
    read = kind.read

    def read_one(*args: Any) -> Iterator[Row]:
        yield next(read(*args))
        pytest.fail("read on")

    monkeypatch.setattr(kind, "read", read_one)
    with pytest.raises(UserError, match=r"has no column 'm' .*; columns are (n|text)$"):
        check_columns(path, ["m"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"n": 1}\n{"n": \n', r"a\.jsonl:2: not valid JSON"),
        (
            "a.jsonl",
            b'{"n": 1}\n[1]\n',
            r"a\.jsonl:2: a row must be a JSON object, found list; a file .* is named \.json",
        ),
        ("a.jsonl", b'{"n": 1}\n{"n": "\xff"}\n', r"a\.jsonl:2: not UTF-8"),
        ("a.json", b'[{"n": 1},\n {"n": }]', r"a\.json:2: not valid JSON"),
        ("a.json", b"\xff\xfe", r"a\.json: not UTF-8"),
        ("a.parquet", b"PAR1 no more", r"a\.parquet: not a readable parquet file"),
        ("a.jsonl", b"\n\n", r"has no rows"),
        *((f"a{suffix}", b"", r"has no rows") for suffix in (".json", ".jsonl", ".csv", ".txt")),
        ("a.parquet", b"", r"a\.parquet: not a readable parquet file"),
        ("a.jsonl", b'{"n": 1, "n": 2}\n', r"a\.jsonl:1: the key 'n' stands twice"),
        ("a.jsonl", b'{"n": "a\x00"}\n', r"a\.jsonl:1: not valid JSON: Invalid control character"),
        ("a.jsonl", b"[" * 100_000 + b"\n", r"a\.jsonl:1: not valid JSON: nested too deeply"),
        ("a.json", b'[{"n": 1}, 2]', r"a\.json:2: a row must be a JSON object, found int"),
        ("a.json", b'[{"n": 1}, {"n": {"m": 1, "m": 1}}, {"n": 2}]', r"a\.json:2: the key 'm' stands twice"),
        ("a.json", b'[{"n": 1} {"n": 2}]', r"a\.json:1: not valid JSON: expected '\]', found '{' at column 11"),
        ("a.json", b'[{"n": 1}\n', r"a\.json:2: not valid JSON: expected '\]', found the end of the file"),
        ("a.json.gz", b"no gzip", r"a\.json\.gz: damaged gzip data"),
        ("a.jsonl.zst", b"no zstd", r"a\.jsonl\.zst: damaged zstd data"),
        ("a.jsonl.gz", gzip.compress(b'{"n": 1}\n' * 1000, mtime=0)[:-9], r"a\.jsonl\.gz: damaged gzip data"),
        ("a.csv", b"n,m\n1\n", r"a\.csv:1: the row has 1 cells, the header 2"),
        ("a.csv", b"n,n\n1,1\n", r"a\.csv: the header names a column twice: n, n"),
        ("a.csv", b'n\n"1\n', r"a\.csv:3?2?: not valid csv"),
        ("a.csv", b"n\n\xff\n", r"a\.csv: not UTF-8 after line 1"),
        ("a.arrow", b"nothing", r"a\.arrow: not a readable arrow file"),
        ("a.xml", b"n", r"files of type '\.xml' are not read; allowed are \.json"),
    ],
)
def test_damaged_input_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        values(tmp_path / name)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"--input nowhere\.jsonl: no such file or directory"):
        find_inputs(["nowhere.jsonl"])


def write_as(path: Path, numbers: list[int]) -> Path:
    """The rows {"n": number} in the file type that the name says."""
    if path.suffix == ".arrow":
        table = pa.table({"n": numbers})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        return path
    text = {
        ".json": json.dumps([{"n": n} for n in numbers]),
        ".jsonl": "".join(f'{{"n": {n}}}\n' for n in numbers),
        ".csv": "n\n" + "".join(f"{n}\n" for n in numbers),
        ".txt": "".join(f"{n}\n\n" for n in numbers),
    }[Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix]
    if path.suffix == ".zst":
        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(text.encode())
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", [name for name in FORMATS if name != ".parquet"])
@pytest.mark.parametrize(("start", "stop"), [(0, 10), (4, 9), (9, 10), (3, 3)])
def test_any_range_of_any_file_type_is_read(tmp_path: Path, name: str, start: int, stop: int) -> None:
    files = find_inputs([str(write_as(tmp_path / f"a{name}", list(range(10))))])
    column = "text" if ".txt" in name else "n"
    assert files.total == 10
    assert [int(row.values[column]) for row in files.rows(start, stop)] == list(range(start, stop))


def test_the_arrow_file_format_is_read_too(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert values(tmp_path / "a.arrow") == [1, 2]


def test_a_saved_dataset_is_read_in_its_own_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    saved = datasets.Dataset.from_dict({"n": list(range(10))}).select([7, 3, 5])
    saved.save_to_disk(str(tmp_path / "saved"))
    assert values(tmp_path / "saved") == [7, 3, 5]
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "dict"))
    with pytest.raises(UserError, match="holds several data sets; give one of its directories: .*train"):
        find_inputs([str(tmp_path / "dict")])


def test_a_glob_is_every_file_it_matches(tmp_path: Path) -> None:
    for number in (2, 1):
        write_as(tmp_path / f"part-{number}.jsonl", [number])
    write_as(tmp_path / "other.jsonl", [3])
    assert values(tmp_path / "part-*.jsonl") == [1, 2]
    with pytest.raises(UserError, match="no such file or directory"):
        find_inputs([str(tmp_path / "none-*.jsonl")])


def test_a_large_jsonl_file_is_read_from_the_middle_without_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + "".join(f'{{"n": {n}}}\n\n' for n in range(10_000)))
    files = find_inputs([str(path)])
    assert [mark.row for mark in files.scans[0].marks] == [4096, 8192]
    rows = list(files.rows(9000, 9003))
    assert [(row.values["n"], row.number) for row in rows] == [(n, 2 * n + 2) for n in (9000, 9001, 9002)]


def test_a_json_file_is_streamed_whatever_the_borders_of_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    rows = [{"n": {"text": 'é😀\\"' * n, "number": n * 1.5}} for n in range(30)]
    for chunk in (1, 7, 64):
        monkeypatch.setattr("mindllm.preprocess.inputs.json_values._CHUNK", chunk)
        path.write_text(json.dumps(rows, ensure_ascii=False, indent=1))
        assert values(path) == [row["n"] for row in rows]
