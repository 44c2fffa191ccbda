"""What the operating system refuses, a full disk at any stage above all: one sentence, exit code 2, nothing left."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mindllm.preprocess.cli import main

REPOSITORY = Path(__file__).resolve().parents[3]
PPO = "PPOAlpacaStyleInstructionHandler"
Write = Callable[..., Path]


def rows(count: int) -> list[dict[str, str]]:
    return [{"instruction": f"question {n} 😀" * (n % 7 + 1), "output": f"answer {n}"} for n in range(count)]


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`mount_disk(kilobytes)`: a file system of that size."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here, which takes root: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)


@pytest.mark.parametrize(
    ("kilobytes", "stage", "flags"),
    [
        (100, "encoding", []),
        (100, "encoding in workers", ["--workers", "2", "--n-subs", "4"]),
        (1010, "writing the sidecar", []),
        (1100, "reordering", ["--shuffle", "--split", "9,1"]),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(
    kilobytes: int,
    stage: str,
    flags: list[str],
    mount_disk: Callable[[int], Path],
    write_jsonl: Write,
    tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = mount_disk(kilobytes)
    command = ["--input", str(write_jsonl(rows(3000))), "--output-prefix", str(disk / "out" / "data"), *flags]
    command += ["--handler-name", PPO, "--tokenizer-name-or-path", str(tokenizer_dir), "--log-interval", "3000"]
    assert main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ") and "No space left on device" in lines[-1]
    assert ("3000 documents in" in "".join(lines[:-1])) == (not stage.startswith("encoding"))
    assert list(disk.iterdir()) == []


def test_a_write_that_fails_is_one_sentence_and_leaves_nothing_behind(
    write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    data = write_jsonl(rows(3000))
    out = tmp_path / "out"
    # A limit on the size of files stands for the disk: writing fails in the same place with the same kind of error.
    limited = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
    limited += "from mindllm.preprocess.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", limited, "--input", str(data), "--output-prefix", str(out / "data")]
    command += ["--handler-name", PPO, "--tokenizer-name-or-path", str(tokenizer_dir)]
    # What measures coverage could not write its own file either.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "error: " in done.stderr and "File too large" in done.stderr
    assert "Traceback" not in done.stderr and not out.exists()


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "txt", "jsonl.gz", "jsonl.zst"])
def test_input_that_cannot_be_read_is_named(
    suffix: str, tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / f"data.{suffix}"
    data.symlink_to("/proc/self/mem")  # opens, and gives an error when it is read
    command = ["--input", str(data), "--output-prefix", str(tmp_path / "out" / "data"), "--handler-name", PPO]
    assert main([*command, "--tokenizer-name-or-path", str(tokenizer_dir)]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"error: {data}: ") and "Input/output error" in stderr and stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [[], ["--preview", "1"]])
def test_output_that_is_not_taken_is_one_sentence(
    flags: list[str], write_jsonl: Write, tokenizer_dir: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "preprocess_data.py", "--input", str(write_jsonl(rows(2))), "--handler-name", PPO]
    command += ["--output-prefix", str(tmp_path / "data"), "--tokenizer-name-or-path", str(tokenizer_dir), *flags]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: standard output: No space left")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
