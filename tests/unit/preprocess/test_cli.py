"""preprocess_data.py: one clear sentence and exit code 2 for each kind of mistake, and a light --help."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindllm.preprocess.cli import main

REPOSITORY = Path(__file__).resolve().parents[3]
PPO, SFT = "PPOAlpacaStyleInstructionHandler", "AlpacaStyleInstructionHandler"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(write_jsonl: Callable[..., Path], tokenizer_dir: Path, tmp_path: Path, capsys: Any) -> Run:
    """`run(**flags)`: exit status and stderr of a run on two good rows, some flags replaced.

    None leaves a flag out, "" gives it no value.
    """

    def start(**flags: Any) -> tuple[int, str]:
        rows = [{"instruction": "Hi", "output": "Ho", "question": "x"}, {"instruction": "Hi", "output": "Ho"}]
        defaults = {
            "input": str(write_jsonl(rows)),
            "output_prefix": str(tmp_path / "out" / "data"),
            "handler_name": PPO,
            "tokenizer_name_or_path": str(tokenizer_dir),
        }
        argv: list[str] = []
        for name, value in {**defaults, **flags}.items():
            if value is not None:
                argv += ["--" + name.replace("_", "-"), *([str(value)] if value != "" else [])]
        status = main(argv)
        return status, capsys.readouterr().err

    return start


def test_a_good_run_prints_its_counts_and_speed(run: Run, tmp_path: Path, capsys: Any) -> None:
    status, stderr = run(log_interval=1)
    assert status == 0
    assert "2 of 2 documents" in stderr and "documents/s, ETA 0 s" in stderr and "2 documents in " in stderr
    assert (tmp_path / "out" / "data_manifest.json").exists()


def test_the_last_line_counts_what_was_dropped_and_changed(
    write_jsonl: Any, tokenizer_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    rows = [{"instruction": "Hi", "output": "Ho"}, {"instruction": "Hi", "output": "Ho " * 99}, {"instruction": "Hi"}]
    command = ["--input", str(write_jsonl(rows)), "--output-prefix", str(tmp_path / "data"), "--handler-name", SFT]
    command += ["--tokenizer-name-or-path", str(tokenizer_dir), "--seq-length", "32", "--overlong", "truncate"]
    assert main(command) == 0
    line = capsys.readouterr().out
    assert line.startswith("3 rows in, 2 written, 1 dropped (1 null_response); 1 answers_cut; ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"input": "nowhere.jsonl"}, "no such file or directory"),
        ({"input": None}, "the following arguments are required: --input"),
        ({"output_prefix": "out/"}, "out/ is a directory; add how the files' names begin, as in out/train"),
        ({"handler_name": "PPOAlpacaInstructionHandler"}, f"did you mean '{PPO}'"),
        ({"prompt_type": "chatlm"}, "did you mean 'chatml'"),
        ({"prompt_type": "llama3"}, "has no BOS token"),
        ({"tokenizer_name_or_path": "nowhere"}, "tokenizer directory nowhere does not exist"),
        ({"tokenizer_name_or_path": REPOSITORY / "configs"}, "holds no tokenizer files"),
        ({"tokenizer_type": "Other"}, "invalid choice: 'Other'"),
        ({"map_keys": '{"prompt": "quetsion"}'}, "columns are instruction, output, question; did you mean 'question'?"),
        (
            {"map_keys": '{"promt": "question"}'},
            "unknown key 'promt'; known are prompt, query, ",
        ),
        ({"map_keys": "{prompt: question}"}, "not valid JSON"),
        ({"map_keys": '{"prompt": "question", "prompt": "output"}'}, "the key 'prompt' stands twice in one object"),
        ({"map_keys": '{"prompt": 1}'}, "--map-keys: 'prompt' must be a column name, found 1"),
        ({"map_keys": "[1]"}, "must be an object from names to column names"),
        ({"handler_name": SFT, "map_keys": '{"response": ""}'}, "leaves no column for 'response'"),
        ({"seq_length": 0}, "'0' is not a positive whole number"),
        ({"seq_length": "many"}, "not a positive whole number"),
        ({"overlong": "drop", "seq_length": 9}, f"--overlong has no effect with {PPO}; use --prompt-overlong"),
        ({"prompt_overlong": "drop"}, "--prompt-overlong has no effect without --seq-length"),
        ({"prompt_overlong": "right", "seq_length": 9}, "invalid choice: 'right'"),
        ({"handler_name": PPO, "neat_pack": ""}, f"--neat-pack has no effect with {PPO}"),
        ({"handler_name": PPO, "no_train_on_history": ""}, f"--no-train-on-history has no effect with {PPO}"),
        ({"handler_name": SFT, "neat_pack": ""}, "--neat-pack needs --seq-length"),
        ({"append_eod": ""}, f"--append-eod has no effect with {PPO}"),
        (
            {"tokenizer_type": "GPTSentencePieceTokenizer", "tokenizer_name_or_path": None, "tokenizer_model": "x.bin"},
            "--tokenizer-model x.bin: expected a sentencepiece file, NAME.model",
        ),
        ({"seq_length": 1}, "all 2 rows were dropped (2 prompt_too_long); nothing is written"),
        ({"n_sub": 4}, "unknown argument --n-sub; --help lists all; did you mean '--n-subs'?"),
        ({"output_prefix": "/dev/null/data"}, "cannot write there"),
    ],
)
def test_a_mistake_is_one_clear_sentence(run: Run, tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    status, stderr = run(**flags)
    lines = [line for line in stderr.splitlines() if " documents in " not in line]
    assert status == 2 and len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
    assert not (tmp_path / "out").exists()


def test_a_damaged_tokenizer_is_one_clear_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    status, stderr = run(tokenizer_name_or_path=tmp_path / "tokenizer")
    assert status == 2 and "does not load" in stderr and len(stderr.splitlines()) == 1


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_imports_nothing_heavy() -> None:
    loaded = imported_by(
        "import mindllm.preprocess.cli; from mindllm.preprocess.flags import build_parser; build_parser().format_help()"
    )
    assert not loaded & {"torch", "transformers", "tokenizers", "pyarrow", "ray", "megatron"}


def test_the_door_loads_parts_on_demand() -> None:
    assert not imported_by("import mindllm.data") & {"numpy", "torch", "transformers", "pyarrow"}
    assert "transformers" not in imported_by("from mindllm.data import PromptDataset, ResumableSampler")
    assert not imported_by("import mindllm.data.sequences") & {"transformers", "pyarrow", "tokenizers"}
