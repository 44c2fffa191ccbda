"""What fails while a run is under way ends it with its own report, and the same command resumes."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.processes import assert_gone, command_line, descendants
from tests.e2e.runs import (
    ACTOR,
    REPOSITORY,
    SHORT,
    finish,
    lines_logged,
    metrics,
    post_train,
    run_process,
    start,
    wait_until,
)

RAY = ["training.executor=ray", f"{ACTOR}.tensor_model_parallel_size=2"]


def test_a_reward_that_raises_ends_the_run_with_its_own_traceback(workspace, tmp_path):
    overrides = [*SHORT, *workspace.own_rewards(tmp_path, "raises")]
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides), status=2)
    assert "reward 'raises' failed" in outcome.err
    assert "LookupError: the reward's own message" in outcome.err
    assert "rewards.py" in outcome.err and "grpo.py" not in outcome.err


def test_a_reward_that_raises_may_count_as_nothing(workspace, tmp_path):
    functions = "[{{name: fraction_right, path: {0}}}, {{name: raises, path: {0}}}]".format(
        workspace.root / "task/rewards.py"
    )
    overrides = [*SHORT, "training.train_iters=1", f"reward.functions={functions}", "reward.on_error=zero"]
    post_train(workspace.arguments("grpo", tmp_path / "run", *overrides))
    (line,) = metrics(tmp_path / "run")
    assert line["reward/errors"] == 32


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_one_sentence_and_the_same_command_resumes(
    workspace, tmp_path
):
    """The limit on the size of files stands for a full disk: it refuses writes at the same places."""
    run_dir = tmp_path / "run"
    arguments = workspace.arguments("grpo", run_dir, *SHORT, "training.save_interval=1")
    post_train([*arguments, "training.train_iters=1"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        outcome = post_train([*arguments, "training.train_iters=2"], status=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    limit = "the file system or `ulimit -f` allows no larger files"
    file = f"{run_dir}/checkpoints/actor/iter_0000002.tmp/__0_0.distcp"
    assert outcome.err == f"error: {file}: File too large; {limit}\n"
    report = json.loads((run_dir / "report.json").read_text())
    assert (report["outcome"], report["resumes_after"]) == ("failed", 1)
    assert "the same command resumes after iteration 1" in outcome.out
    assert {path.name for path in (run_dir / "checkpoints").rglob("iter_*")} == {"iter_0000001", "iter_0000001.json"}
    assert "resuming after iteration 1 of 2" in post_train([*arguments, "training.train_iters=2"]).out
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2]


def test_steps_without_a_finite_gradient_are_skipped_and_end_the_run(workspace, tmp_path):
    overrides = [*SHORT, f"{ACTOR}.lr=1e30", f"{ACTOR}.lr_decay_style=constant", "training.max_skipped_steps=2"]
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides), status=2)
    assert "max_skipped_steps" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_worker_ends_the_run_with_its_obituary_and_the_same_command_resumes(workspace, tmp_path):
    run_dir = tmp_path / "run"
    arguments = workspace.arguments("grpo", run_dir, *SHORT, *RAY, "training.save_interval=2")
    process = start(arguments)
    wait_until(process, lambda: lines_logged(run_dir) >= 3)
    started = descendants(process.pid)
    ranks = [pid for pid, _ in started if command_line(pid).startswith("ray::RankProcess")]
    assert len(ranks) == 2
    os.kill(ranks[0], signal.SIGKILL)
    killed_at = time.monotonic()
    outcome = finish(process, timeout_s=60)
    assert time.monotonic() - killed_at < 60
    assert outcome.status == 1
    assert "Traceback" not in outcome.err
    obituary = re.search(r"actor_rollout rank (\d) \(pid (\d+)\) was ended by signal 9", outcome.err)
    assert obituary is not None, outcome.err
    assert int(obituary[2]) == ranks[0]
    assert f"actor_rollout_rank{obituary[1]}.log" in outcome.err
    assert_gone(started)

    assert sorted(path.name for path in (run_dir / "checkpoints").glob("*.json")) == ["iter_0000002.json"]
    assert "resuming after iteration 2 of 6" in run_process(arguments).out
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.ray
def test_a_run_that_a_scheduler_terminates_ends_as_one_that_is_interrupted(workspace, tmp_path):
    process = start(workspace.arguments("grpo", tmp_path / "run", *SHORT, *RAY))
    wait_until(process, lambda: lines_logged(tmp_path / "run") >= 1)
    started = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    outcome = finish(process, timeout_s=60)
    assert outcome.status == 130
    assert outcome.err.splitlines()[-1] == "interrupted"
    assert "interrupted: " in outcome.out and "the same command starts from the beginning" in outcome.out
    assert "Traceback" not in outcome.err and "SIGTERM" not in outcome.err
    assert_gone(started)


BROKEN_ENGINE = """
import importlib.util, sys

class Breaking:
    def find_spec(self, name, path=None, target=None):
        if name != "mindllm.rollout.engine":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_break(module):
            execute(module)
            module.GenerationEngine.generate = broken_generate

        spec.loader.exec_module = execute_and_break
        return spec

def broken_generate(self, *_):
    raise LookupError("the engine's own message")

sys.meta_path.insert(0, Breaking())
"""


@pytest.mark.slow
@pytest.mark.ray
def test_an_exception_in_a_worker_ends_the_run_with_the_workers_own_traceback(workspace, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BROKEN_ENGINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run_process(workspace.arguments("grpo", tmp_path / "run", *SHORT, *RAY), status=1)
    assert re.match(r"error: actor_rollout rank \d failed:\nTraceback \(most recent call last\):\n  File ", outcome.err)
    assert "in broken_generate" in outcome.err and "LookupError: the engine's own message" in outcome.err
    assert "posttrain.py" not in outcome.err  # no frame of the driver


def test_a_damaged_checkpoint_that_only_reading_finds_is_named(workspace, tmp_path):
    mcore = tmp_path / "mcore"
    shutil.copytree(workspace.mcore, mcore)
    data = mcore / "iter_0000001/__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[1000:-1000] = bytes(len(content) - 2000)  # of the right length, so that only reading it tells
    data.write_bytes(content)
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *SHORT, f"training.load={mcore}"), status=2)
    assert re.fullmatch(rf"error: {re.escape(str(data))} is damaged at tensor \S+: .*\n", outcome.err), outcome.err


@pytest.mark.slow
def test_output_that_is_not_taken_ends_a_run_in_a_sentence_and_a_closed_one_does_not(workspace, tmp_path):
    arguments = workspace.arguments("grpo", tmp_path / "run", *SHORT, "training.train_iters=1")
    command = [sys.executable, "posttrain_gpt.py", *map(str, arguments)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: standard output: No space left")
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
