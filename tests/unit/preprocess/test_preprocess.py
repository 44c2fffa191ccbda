"""Whole runs: equal bytes for any number of workers and parts, megatron-core as reader, and interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindllm.data import InstructionDataset, PromptDataset
from mindllm.data.manifest import manifest_path
from mindllm.errors import UserError
from mindllm.preprocess.run import PreprocessOptions, preprocess

REPOSITORY = Path(__file__).resolve().parents[3]
PPO, SFT = "PPOAlpacaStyleInstructionHandler", "AlpacaStyleInstructionHandler"
Write = Callable[..., Path]


def mixed_rows(count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for n in range(count):
        row: dict[str, Any] = {"instruction": f"question {n} 😀" * (n % 7), "output": f"answer {n}", "level": None}
        if n % 5 == 0:
            row["history"] = [["before", "then"]]
        if n > count // 2:
            row["level"] = n
        rows.append(row)
    return rows


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("handler", [PPO, SFT])
def test_any_number_of_workers_and_parts_gives_equal_bytes(
    handler: str, write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    rows = mixed_rows(1500)
    inputs = [str(write_jsonl(rows[:700])), str(tmp_path / "more.parquet")]
    pq.write_table(pa.Table.from_pylist(rows[700:]), inputs[1], row_group_size=100)
    results = []
    for workers, n_subs in [(1, 1), (1, 4), (2, 1), (2, 3), (1, 97)]:
        directory = tmp_path / f"{workers}-{n_subs}"
        options = PreprocessOptions(
            inputs, directory / "data", tokenizer_dir, handler, "chatml", seq_length=60, workers=workers, n_subs=n_subs
        )
        manifest = preprocess(options)[""]
        assert manifest["rows"]["in"] == 1500 and len(manifest["rows"]["dropped"]) == 2
        results.append(contents(directory))
    assert all(result == results[0] for result in results[1:])
    assert len(results[0]) == (4 if handler == PPO else 5)


def test_megatron_core_reads_ids_and_labels(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    import mindllm.device  # noqa: F401  prepares the process for megatron-core

    from megatron.core.datasets.indexed_dataset import IndexedDataset

    preprocess(PreprocessOptions([str(write_jsonl(mixed_rows(50)))], tmp_path / "sft", tokenizer_dir, SFT, n_subs=3))
    ours = InstructionDataset(tmp_path / "sft")
    ids, labels = (IndexedDataset(f"{tmp_path}/sft_{key}_document") for key in ("input_ids", "labels"))
    assert len(ids) == len(labels) == len(ours)
    for index in range(len(ours)):
        assert np.array_equal(ids[index], ours[index].input_ids)
        assert np.array_equal(labels[index], ours[index].labels) and -100 in labels[index]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_leaves_no_file_under_a_final_name_and_a_rerun_succeeds(
    number: signal.Signals, write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    data = write_jsonl(mixed_rows(12000))
    out = tmp_path / "out"
    command = [sys.executable, "preprocess_data.py", "--input", str(data), "--output-prefix", str(out / "data")]
    command += ["--handler-name", PPO, "--tokenizer-name-or-path", str(tokenizer_dir), "--workers", "2"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in out.glob("data.tmp-*/part-0/*.tokens")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    children = children_of(process.pid)
    process.send_signal(number)
    status = process.wait()
    if number == signal.SIGKILL:
        assert [path.name for path in out.iterdir()] == [f"data.tmp-{os.uname().nodename}-{process.pid}"]
    else:
        assert status == 130 and not out.exists()
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)
    preprocess(PreprocessOptions([str(data)], out / "data", tokenizer_dir, PPO))
    assert len(PromptDataset(out / "data")) > 10000 and len(list(out.iterdir())) == 4


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_existing_data_is_replaced_only_when_asked(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "data"
    options = {"inputs": [str(write_jsonl(mixed_rows(20)))], "output_prefix": out, "tokenizer": tokenizer_dir}
    preprocess(PreprocessOptions(**options, handler=SFT))
    with pytest.raises(UserError, match=r"data_manifest\.json exists already; --overwrite replaces that data"):
        preprocess(PreprocessOptions(**options, handler=PPO))
    preprocess(PreprocessOptions(**options, handler=PPO, overwrite=True))
    listed = json.loads(manifest_path(out).read_text())["outputs"]
    assert {path.name for path in out.parent.iterdir()} == {*listed, "data_manifest.json"}  # no labels of the older run


def test_a_failed_run_leaves_nothing_behind(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    data = write_jsonl(mixed_rows(600))
    data.write_text(data.read_text() + "{broken\n")
    for workers, n_subs in [(1, 1), (2, 2)]:
        with pytest.raises(UserError, match=r"rows\.jsonl:601: not valid JSON"):
            preprocess(
                PreprocessOptions(
                    [str(data)], tmp_path / "out" / "data", tokenizer_dir, PPO, workers=workers, n_subs=n_subs
                )
            )
    assert not (tmp_path / "out").exists()


def test_rows_of_every_kind_of_badness_are_counted_in_the_manifest(tokenizer_dir: Path, tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"instruction": "a", "output": "b"}\r\n',  # BOM and CRLF are no fault
        b'{"instruction": "a\\u0000", "output": "b"}\n',  # nor is an escaped NUL
        b'{"instruction": "a", "output": \n',
        b'{"instruction": "a\x00", "output": "b"}\n',
        b'{"instruction": "\xff", "output": "b"}\n',
        b'{"instruction": "a", "instruction": "c", "output": "b"}\n',
        b'["a", "b"]\n',
        b'{"instruction": null, "output": "b"}\n',
        b'{"instruction": 3, "output": "b"}\n',
        b'{"instruction": [["a"]], "output": "b"}\n',
        b'{"instruction": "a", "output": " "}\n',
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines))
    options = {"inputs": [str(tmp_path / "rows.jsonl")], "tokenizer": tokenizer_dir, "handler": SFT}
    with pytest.raises(UserError, match=r"rows\.jsonl:3: not valid JSON: .* --on-bad-row skip leaves such rows out"):
        preprocess(PreprocessOptions(output_prefix=tmp_path / "a", **options))
    manifest = preprocess(PreprocessOptions(output_prefix=tmp_path / "b", on_bad_row="skip", **options))[""]
    assert manifest["rows"] == {
        "in": 11,
        "written": 2,
        "dropped": {
            "duplicate_key": 1,
            "empty_response": 1,
            "invalid_json": 2,
            "not_an_object": 1,
            "not_utf8": 1,
            "null_prompt": 1,
            "prompt_not_text": 2,
        },
    }


def test_a_handler_file_may_use_torch(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\nfrom mindllm.preprocess.handlers import register_handler\n"
        "from mindllm.preprocess.handlers.alpaca import AlpacaStyleInstructionHandler\n\n\n"
        "@register_handler\nclass Own(AlpacaStyleInstructionHandler):\n    scale = torch.ones(1)\n"
    )
    command = [sys.executable, "-X", "importtime", "preprocess_data.py", "--input", str(write_jsonl(mixed_rows(20)))]
    command += ["--tokenizer-name-or-path", str(tokenizer_dir), "--handler-name"]
    for name, handler in (("own", ["Own", "--handler-file", str(tmp_path / "own.py")]), ("built-in", [SFT])):
        whole = [*command, *handler, "--output-prefix", str(tmp_path / name)]
        done = subprocess.run(whole, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        # Without need of it, torch would cost more time than the tokenizer.
        assert ("torch" in imported) == (name == "own") and "not found" not in done.stderr
    assert len(InstructionDataset(tmp_path / "own")) == len(InstructionDataset(tmp_path / "built-in"))


def test_a_killed_worker_ends_the_run_with_a_sentence(write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path) -> None:
    data = write_jsonl(mixed_rows(12000))
    out = tmp_path / "out"
    command = [sys.executable, "preprocess_data.py", "--input", str(data), "--output-prefix", str(out / "data")]
    command += ["--handler-name", PPO, "--tokenizer-name-or-path", str(tokenizer_dir), "--workers", "2"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in out.glob("data.tmp-*/part-0/*.tokens")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    workers = [pid for pid in children_of(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and "error: a worker process was killed" in stderr and "Traceback" not in stderr
    assert not out.exists()


@pytest.mark.parametrize("when", ["encoding", "writing"])
def test_a_kill_while_reordering_and_splitting_leaves_no_final_file(
    when: str, write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    data = write_jsonl(mixed_rows(6000))
    out = tmp_path / "out"
    command = [sys.executable, "preprocess_data.py", "--input", str(data), "--output-prefix", str(out / "data")]
    command += ["--handler-name", PPO, "--tokenizer-name-or-path", str(tokenizer_dir), "--shuffle", "--split", "9,1"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    awaited = {"encoding": "data.tmp-*/part-0/*.tokens", "writing": "data.tmp-*/data_train_*"}[when]
    deadline = time.monotonic() + 200
    while process.poll() is None and not list(out.glob(awaited)):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = [path.name for path in out.iterdir()]
    assert all(name.startswith("data.tmp-") for name in left) or not [n for n in left if n.startswith("data.tmp-")]
    preprocess(PreprocessOptions([str(data)], out / "other", tokenizer_dir, PPO))
    assert len(PromptDataset(out / "other")) > 5000
