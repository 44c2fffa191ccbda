"""Several processes write what one writes, and what goes wrong in one is what the user reads."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.parallel import run_shares
from mindllm.errors import UserError
from tests.unit.convert.tiny_models import assert_same_tensors, edit_tensors, make_hf_model, read_all

ROOT = Path(__file__).parents[3]
FORMATS: list[dict[str, Any]] = [
    {},
    {"ckpt_format": "torch"},
    {"ckpt_format": "torch", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
]


@pytest.mark.parametrize("options", FORMATS, ids=["torch_dist", "one-file", "tp2pp2"])
@pytest.mark.parametrize("num_workers", [2, 5])
def test_any_number_of_workers_gives_the_same_tensors(
    tmp_path: Path, options: dict[str, Any], num_workers: int
) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen3", tied=True)
    convert_hf_to_mcore(hf, tmp_path / "mcore", workers=num_workers, verify=True, **options)
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", workers=num_workers, verify=True)
    assert_same_tensors(read_all(hf), read_all(back))
    alone = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "alone")
    assert (alone / "model.safetensors").read_bytes() == (back / "model.safetensors").read_bytes()


def test_a_mistake_that_a_worker_finds_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen2")
    edit_tensors(hf, {"model.norm.weight": torch.full((64,), torch.nan)})
    with pytest.raises(UserError, match=r"model\.norm\.weight in .* holds NaN"):
        convert_hf_to_mcore(hf, tmp_path / "mcore", workers=2, verify=True)
    assert not list(tmp_path.glob("mcore*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_conversion_that_is_ended_leaves_no_workers(tmp_path: Path, number: signal.Signals) -> None:
    hf = make_hf_model(tmp_path / "hf", "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=12)
    arguments = ["--load-model-type", "hf", "--save-model-type", "mcore", "--workers", "2", "--verify"]
    arguments += ["--load-dir", str(hf), "--save-dir", str(tmp_path / "result")]
    command = [sys.executable, "convert_ckpt.py", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(workers := children.read_text().split()) < 2:
        assert process.poll() is None
    time.sleep(0.05)  # both have begun
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert (process.returncode, err) == (130, "interrupted\n")
        assert not list(tmp_path.glob("result*"))
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _fail(kind: str) -> Any:
    def work(number: int) -> int:
        if number == 1:
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "memory":
                raise MemoryError("Unable to allocate 5 GiB")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if kind == "full" else UserError("a sentence")
        return number

    return work


def test_results_come_in_order_and_failures_as_what_they_are() -> None:
    assert run_shares(3, lambda number: number * 2) == [0, 2, 4]
    with pytest.raises(UserError, match="a sentence"):
        run_shares(2, _fail("user"))
    with pytest.raises(UserError, match="out of memory in one of several --workers: Unable to allocate 5 GiB"):
        run_shares(2, _fail("memory"))
    with pytest.raises(OSError, match="No space left"):
        run_shares(2, _fail("full"))
    with pytest.raises(UserError, match="worker process ended with exit code -9"):
        run_shares(2, _fail("killed"))
