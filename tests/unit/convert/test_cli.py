"""The command line of the converter."""

import subprocess
import sys
from pathlib import Path

import pytest

from mindllm.convert.cli import build_parser, main
from mindllm.errors import UserError
from tests.unit.convert.tiny_models import assert_same_tensors, read_all

ROOT = Path(__file__).parents[3]
TO_MCORE = ["--load-model-type", "hf", "--save-model-type", "mcore"]
TO_HF = ["--load-model-type", "mcore", "--save-model-type", "hf"]


def test_both_directions_run_from_the_door(hf_qwen2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layout = [
        "--target-tensor-parallel-size",
        "2",
        "--ckpt-format",
        "torch_dist",
        "--make-vocab-size-divisible-by",
        "8",
    ]
    paths = ["--load-dir", str(hf_qwen2), "--save-dir", str(tmp_path / "mcore")]
    assert main([*TO_MCORE, *paths, *layout, "--verify"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert (
        lines[0].startswith("plan: qwen2, 4 layers, float32, 31 tensors, 0.5 MiB") and "read back and equal" in lines[1]
    )

    paths = ["--load-dir", str(tmp_path / "mcore"), "--save-dir", str(tmp_path / "back"), "--model-type-hf", "qwen2"]
    assert main([*TO_HF, *paths, "--iteration", "1", "--max-shard-size", "0.1MiB"]) == 0
    assert_same_tensors(read_all(hf_qwen2), read_all(tmp_path / "back"))
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 2


def test_help_needs_no_numpy_and_a_conversion_no_torch_so_no_process_group_and_no_ray(
    hf_qwen2: Path, tmp_path: Path
) -> None:
    paths = ["--load-dir", str(hf_qwen2), "--save-dir", str(tmp_path / "mcore"), "--workers", "2", "--verify"]
    back = ["--load-dir", str(tmp_path / "mcore"), "--save-dir", str(tmp_path / "back")]
    code = (
        "import sys; from mindllm.convert.cli import build_parser, main; build_parser().format_help();"
        "heavy = {'torch', 'megatron', 'ray', 'transformers', 'numpy'}; assert not heavy & set(sys.modules);"
        f"status = main({[*TO_MCORE, *paths]!r}) or main({[*TO_HF, *back]!r});"
        "assert not (heavy - {'numpy'}) & set(sys.modules); sys.exit(status)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TO_MCORE, "--iteration", "3"], "--iteration has no effect with hf -> mcore"),
        ([*TO_MCORE, "--max-shard-size", "1GB"], "--max-shard-size has no effect"),
        ([*TO_HF, "--target-tensor-parallel-size", "2"], "--target-tensor-parallel-size has no effect"),
        ([*TO_HF, "--make-vocab-size-divisible-by", "2"], "--make-vocab-size-divisible-by has no effect"),
        (["--load-model-type", "hf", "--save-model-type", "hf"], "hf -> hf is not a conversion"),
        (TO_MCORE, "nowhere is not a directory"),
        (TO_HF, "is not a checkpoint directory"),
    ],
)
def test_a_mistake_ends_with_one_sentence_and_status_2(
    arguments: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--load-dir", str(tmp_path / "nowhere"), "--save-dir", str(tmp_path / "result")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and said in error and error.count("\n") == 1


@pytest.mark.parametrize("flag", ["--verify", "--dry-run", "--with-optimizer"])
def test_a_flag_is_there_or_not_and_takes_no_false(flag: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [*TO_MCORE, "--load-dir", "a", "--save-dir", "b", flag, "False"]
    try:
        status: object = main(arguments)
    except SystemExit as error:
        status = error.code
    assert status == 2 and "unrecognized arguments: False" in capfd.readouterr().err


def test_a_dry_run_checks_and_plans_and_writes_nothing(
    hf_qwen2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = ["--load-dir", str(hf_qwen2), "--save-dir", str(tmp_path / "mcore"), "--dry-run"]
    assert main([*TO_MCORE, *paths]) == 0
    plan, last = capfd.readouterr().out.splitlines()
    assert "MiB of memory and, at " in plan and last == "dry run: nothing was written"
    assert not list(tmp_path.iterdir())
    assert main([*TO_MCORE, *paths, "--model-type-hf", "llama"]) == 2


@pytest.mark.parametrize(("text", "num_bytes"), [("500MB", 500_000_000), ("2GiB", 2**31), ("1.5 kb", 1500), ("7", 7)])
def test_sizes_are_read_with_their_units(text: str, num_bytes: int) -> None:
    options = build_parser().parse_args([*TO_HF, "--load-dir", "a", "--save-dir", "b", "--max-shard-size", text])
    assert options.max_shard_size == num_bytes


@pytest.mark.parametrize("text", ["", "5XB", "-1GB", "0"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--max-shard-size"):
        build_parser().parse_args([*TO_HF, "--load-dir", "a", "--save-dir", "b", "--max-shard-size", text])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--load-modl-type", "hf"], "unknown argument --load-modl-type; --help lists all; did you mean '--load-mod"),
        (["--load-model-type", "hff"], "invalid choice: 'hff' (choose from 'hf', 'mcore'); --help lists all flags"),
        (["--workers", "0"], "'0' is not a positive whole number"),
    ],
)
def test_a_mistyped_command_line_is_answered_by_one_sentence(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    written = capfd.readouterr()
    assert said in written.err and len(written.err.splitlines()) == 1 and not written.out
