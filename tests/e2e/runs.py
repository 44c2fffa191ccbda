"""How the tests run the three commands and read what a run left."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mindllm.observe import RunLog
from tests.e2e.processes import Identity, descendants

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
ACTOR = "actor_rollout_ref.actor_rollout"


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Workspace:
    """What the runs of a session share; nothing in it is written to after it was made."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        return self.root / name

    def arguments(self, config_name: str, run_dir: Path, *overrides: str) -> list[str]:
        """The command line of a run in ``run_dir``."""
        where = ["--config-name", config_name, "--config-dir", str(self.root / "configs")]
        return [*where, f"training.run_dir={run_dir}", *overrides]

    def own_rewards(self, directory: Path, name: str = "fraction_right") -> list[str]:
        """Overrides for a reward of ``tiny.REWARDS`` in a file of the test's own, which can be told to hold."""
        shutil.copy(self.root / "task/rewards.py", directory)
        function = f"{{name: {name}, path: {directory}/rewards.py}}"
        return [f"reward.functions=[{function}]", "reward.timeout_s=60"]


SHORT = [
    "training.train_iters=6",
    "training.global_batch_size=8",
    f"{ACTOR}.n_samples_per_prompt=4",
    f"{ACTOR}.ppo_mini_batch_size=16",
    f"{ACTOR}.shuffle_minibatch=true",
    f"{ACTOR}.lr_decay_style=linear",
]
"""Six quick GRPO iterations of two steps; the 40 prompts run out in the sixth, and the learning rate moves."""
SHORT_SEQUENCES = 32
"""Responses of one such iteration."""


def write_configs(workspace: Workspace) -> None:
    """Write grpo.yaml and sft.yaml, inline and TP1, into the workspace's configs."""
    common = {
        "seed": 0,
        "executor": "inline",
        "seq_length": 16,
        "load": str(workspace.root / "mcore"),
        "lr": 1e-3,
        "weight_decay": 0.0,
        "trackers": ["jsonl"],
        "log_interval": 1000,
    }
    actor = {
        "data_path": str(workspace.root / "data/train"),
        "n_samples_per_prompt": 8,
        "ppo_mini_batch_size": 128,
        "clip_ratio": 0.2,
        "max_prompt_length": 8,
        "max_new_tokens": 4,
    }
    function = {"name": "fraction_right", "path": str(workspace.root / "task/rewards.py")}
    grpo = {
        "training": {**common, "stage": "ray_grpo", "train_iters": 80, "global_batch_size": 32, "save_interval": 1000},
        "actor_rollout_ref": {"actor_rollout": actor},
        "reward": {"functions": [function], "num_workers": 1},
    }
    sft_keys = {"stage": "sft", "train_iters": 6, "global_batch_size": 8, "data_path": str(workspace.root / "data/sft")}
    configs = workspace.root / "configs"
    configs.mkdir()
    (configs / "grpo.yaml").write_text(yaml.safe_dump(grpo))
    (configs / "sft.yaml").write_text(yaml.safe_dump({"training": {**common, **sft_keys}}))


def run_here(main: Callable[[list[str]], int], arguments: list[Any]) -> Outcome:
    """Call a door's ``main`` in this process, which saves its imports."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
    return Outcome(status, out.getvalue(), err.getvalue())


def post_train(arguments: list[Any], status: int = 0) -> Outcome:
    """Run posttrain_gpt.py in this process (inline executor) and expect an exit status."""
    from mindllm import posttrain

    outcome = run_here(posttrain.main, arguments)
    assert outcome.status == status, outcome.err + outcome.out
    return outcome


def post_train_until(iteration: int, arguments: list[Any]) -> Outcome:
    """Run posttrain_gpt.py in this process, interrupted as by Ctrl-C when ``iteration`` is about to be logged."""
    log = RunLog.log

    def log_or_stop(self: RunLog, number: int, values: Mapping[str, Any]) -> None:
        if number == iteration:
            raise KeyboardInterrupt
        log(self, number, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "log", log_or_stop)
        return post_train(arguments, status=130)


def start(arguments: list[Any], script: str = "posttrain_gpt.py") -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, script, *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> Outcome:
    """Wait for a started command."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Outcome(process.returncode, out, err)


def run_process(arguments: list[Any], status: int = 0, script: str = "posttrain_gpt.py") -> Outcome:
    """Run a command as a process of its own and expect an exit status."""
    outcome = finish(start(arguments, script))
    assert outcome.status == status, outcome.err + outcome.out
    return outcome


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Wait for ``condition``; the command must not end before it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"the run ended too early: {process.communicate()}"
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)


def kill_when(process: subprocess.Popen[str], condition: Callable[[], bool]) -> set[Identity]:
    """Kill -9 a command as soon as ``condition`` holds; returns the processes it had started."""
    wait_until(process, condition)
    started = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        stream.close()
    assert process.returncode == -signal.SIGKILL
    return started


def lines_logged(run_dir: Path) -> int:
    """Iterations in metrics.jsonl so far."""
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def metrics(run_dir: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what depends on the clock and the machine."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    measured = ("timing/", "memory/")
    return [{name: value for name, value in line.items() if not name.startswith(measured)} for line in lines]


def samples(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of every sample dump, by file name."""
    files = sorted((run_dir / "samples").iterdir())
    return {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


def final_weights(run_dir: Path, export: Path) -> dict[str, Any]:
    """Every tensor of the run's last checkpoint, exported to Hugging Face by the converter."""
    from safetensors.torch import load_file

    from mindllm.convert.cli import main

    kinds = ["--load-model-type", "mcore", "--save-model-type", "hf"]
    outcome = run_here(main, [*kinds, "--load-dir", run_dir / "checkpoints/actor", "--save-dir", export])
    assert outcome.status == 0, outcome.err
    return load_file(export / "model.safetensors")
