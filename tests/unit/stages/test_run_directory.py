"""One process at a time in a run directory, and what it says of a configuration or of data that was changed."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mindllm.errors import UserError
from mindllm.stages.run_directory import DataOrigin, RewardFiles, changed_keys, find_frozen, lock

HOLDER = """
import sys
from pathlib import Path
from mindllm.stages.run_directory import lock
held = lock({"training.run_dir": Path(sys.argv[1])})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_directory_has_one_process_and_is_free_when_that_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="training.run_dir: another process is running in .*run; wait for its end"):
            lock({"training.run_dir": tmp_path / "run"})
        with pytest.raises(UserError, match="critic.save: another process is running in .*run; .* write another save"):
            lock({"training.run_dir": tmp_path / "mine", "critic.save": tmp_path / "run"})
        lock({"training.run_dir": tmp_path / "mine"}).close()  # which the refusal left free
        other.kill()
    lock({"training.run_dir": tmp_path / "run"}).close()


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


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"a: [1", b"\xff", b"text"])
def test_a_damaged_copy_of_the_configuration_does_not_keep_a_run_from_going_on(tmp_path, content):
    (tmp_path / "config.yaml").write_bytes(content)
    assert changed_keys(tmp_path, "training: {lr: 0.1}") == [
        f"{tmp_path}/config.yaml is damaged: keys that were changed since the run was last started cannot be named"
    ]


@dataclass
class FakeData:
    content_hash: str
    rows: int = 3

    def __len__(self) -> int:
        return self.rows


def origin(allow_changed: bool = False, **data: FakeData) -> DataOrigin:
    made = DataOrigin(Path("run"), allow_changed)
    for key, one in data.items():
        made.add(key, f"data/{key}", one)
    return made


def saved(**data: FakeData) -> dict:
    return json.loads(json.dumps(origin(**data).state_dict()))


@pytest.mark.parametrize("changed", ["train", "held_out"])
def test_changed_data_is_refused_at_resume_although_it_has_as_many_rows(changed):
    before = {"train": FakeData("a"), "held_out": FakeData("b")}
    now = before | {changed: FakeData("c")}
    with pytest.raises(UserError) as refusal:
        origin(**now).load_state_dict(saved(**before))
    assert str(refusal.value) == (
        f"{changed}: data/{changed} has other contents than what the run in run has read so far "
        "(3 rows then, 3 now); put the data back, write another training.run_dir, or go on with what is there now by "
        "training.allow_changed_data=true"
    )


def test_moved_data_is_accepted_and_other_data_elsewhere_is_not(capsys):
    now = DataOrigin(Path("run"), False)
    now.add("train", "moved/train", FakeData("a"))
    now.load_state_dict(saved(train=FakeData("a")))
    with pytest.raises(UserError, match="moved/train has other contents than data/train, which the run in run has"):
        now.load_state_dict(saved(train=FakeData("b")))
    assert capsys.readouterr().out == ""


def test_held_out_data_may_be_added_or_left_out_at_resume():
    both, alone = {"train": FakeData("a"), "held_out": FakeData("b")}, {"train": FakeData("a")}
    origin(**both).load_state_dict(saved(**alone))
    origin(**alone).load_state_dict(saved(**both))


def test_changed_data_that_is_allowed_is_named(capsys):
    origin(allow_changed=True, train=FakeData("c", 5)).load_state_dict(saved(train=FakeData("a")))
    assert "train: data/train has other contents" in capsys.readouterr().out


def test_a_changed_file_of_rewards_is_named_at_resume(tmp_path, capsys):
    changed, same = tmp_path / "changed.py", tmp_path / "same.py"
    for path in (changed, same):
        path.write_text("def reward(completions): return 1\n")
    before = RewardFiles([str(changed), str(same)]).state_dict()
    changed.write_text("def reward(completions): return 2\n")
    RewardFiles([str(changed), str(same)]).load_state_dict(before)
    said = f"changed since the run was last started: the contents of {changed} (reward.functions)\n"
    assert capsys.readouterr().out == said
    RewardFiles([str(changed)]).load_state_dict({})
    assert capsys.readouterr().out == ""


def checkpoint(directory, *iterations):
    for number in iterations:
        (directory / f"iter_{number:07d}").mkdir(parents=True)
    (directory / "latest_checkpointed_iteration.txt").write_text(f"{iterations[-1]}\n")
    return directory


def test_a_frozen_model_stays_the_iteration_that_the_run_began_with(tmp_path, capsys):
    load = checkpoint(tmp_path / "ref", 3)
    before = find_frozen("ref", str(load), None).as_state()
    checkpoint(load, 8)
    assert find_frozen("ref", str(load / "../ref"), before).directory.name == "iter_0000003"
    assert "ref.load: " in (out := capsys.readouterr().out) and "although iter_0000008 is there now" in out
    assert find_frozen("ref", str(load), None).directory.name == "iter_0000008"


def test_a_frozen_model_of_another_directory_is_that_ones_latest(tmp_path):
    before = find_frozen("reward", str(checkpoint(tmp_path / "old", 3)), None).as_state()
    other = checkpoint(tmp_path / "new", 3, 4)
    assert find_frozen("reward", str(other), before).directory == other / "iter_0000004"


def test_a_frozen_model_that_is_gone_is_not_replaced_by_a_later_one(tmp_path):
    load = checkpoint(tmp_path / "ref", 3)
    before = find_frozen("ref", str(load), None).as_state()
    (load / "iter_0000003").rmdir()
    checkpoint(load, 8)
    with pytest.raises(UserError, match=r"ref.load: .*/iter_0000003, which the run was begun with, is gone"):
        find_frozen("ref", str(load), before)


def test_a_frozen_model_whose_weights_were_replaced_in_place_is_refused(tmp_path):
    load = checkpoint(tmp_path / "ref", 3)
    weights = load / "iter_0000003/__0_0.distcp"
    generator = np.random.default_rng(0)
    first, second = (generator.bytes(1_000_000) for _ in range(2))
    weights.write_bytes(first)
    before = find_frozen("ref", str(load), None).as_state()
    weights.write_bytes(first)  # the same bytes at another time
    assert find_frozen("ref", str(load), before).as_state() == before
    weights.write_bytes(second)
    with pytest.raises(UserError, match=r"ref.load: .*/iter_0000003 has other weights than when the run was begun"):
        find_frozen("ref", str(load), before)
    earlier = {name: value for name, value in before.items() if name != "weights"}
    assert find_frozen("ref", str(load), earlier).directory == load / "iter_0000003"
