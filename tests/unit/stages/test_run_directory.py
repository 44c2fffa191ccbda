"""One process at a time in a run directory, and what it says of a configuration that was changed."""

import subprocess
import sys

import pytest

from mindllm.errors import UserError
from mindllm.stages.run_directory import changed_keys, lock

HOLDER = """
import sys
from pathlib import Path
from mindllm.stages.run_directory import lock
held = lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_directory_has_one_process_and_is_free_when_that_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="training.run_dir: another process is running in .*run; wait for its end"):
            lock(tmp_path / "run")
        other.kill()
    lock(tmp_path / "run").release()


def test_changed_keys_are_named_with_both_values(tmp_path):
    before = "training: {run_dir: a, lr: 0.1, save: x}\nactor_rollout_ref: {actor_rollout: {load: old, n: [1, 2]}}\n"
    now = "training: {run_dir: b, lr: 0.2}\nactor_rollout_ref: {actor_rollout: {load: new, n: [1, 2]}}\n"
    (tmp_path / "config.yaml").write_text(before)
    assert changed_keys(tmp_path, now) == [
        "changed since the run was last started: actor_rollout_ref.actor_rollout.load: old -> new "
        "(not read: the weights are those of the run's checkpoint)",
        "changed since the run was last started: training.lr: 0.1 -> 0.2",
        "changed since the run was last started: training.save: x -> unset",
    ]
    assert changed_keys(tmp_path, before) == []
    assert changed_keys(tmp_path / "new", now) == []
