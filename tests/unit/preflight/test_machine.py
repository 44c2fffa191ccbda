"""The machine and the file system against the run."""

from pathlib import Path

import pytest

from mindllm.config import build_config
from mindllm.errors import UserError
from mindllm.preflight.machine import check_completed, check_export, check_trackers, check_writable


def sft(processes: int = 1):
    training = {"stage": "sft", "train_iters": 2, "global_batch_size": 8, "seq_length": 16}
    training |= {"load": "ckpt", "data_path": "data", "lr": 1e-3}
    return build_config({"training": training, "resource_pool": {"actor_rollout": processes}})


def test_a_directory_that_can_be_made_passes_and_a_file_on_the_way_is_named(tmp_path):
    check_writable(tmp_path / "not/yet/there", "training.run_dir")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"training.run_dir: .*/file is a file, not a directory"):
        check_writable(tmp_path / "file/below", "training.run_dir")


def test_an_unfinished_run_does_not_export_over_what_is_there(tmp_path):
    check_export(tmp_path / "new")
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match="exists already; name a directory that does not"):
        check_export(tmp_path / "old")


def test_a_run_cannot_be_shorter_than_what_it_has_behind_it(tmp_path):
    config = sft()
    config = config.model_copy(update={"training": config.training.model_copy(update={"run_dir": str(tmp_path)})})
    assert check_completed(config) == 0
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/iter_0000002.json").write_text("{}")
    assert check_completed(config) == 2
    (tmp_path / "checkpoints/iter_0000003.json").write_text("{}")
    with pytest.raises(UserError, match="train_iters: 2, but the run in .* has 3 iterations behind it"):
        check_completed(config)


def test_a_directory_that_nobody_can_write_to_is_named_even_for_root():
    with pytest.raises(UserError, match=r"training.export_hf: /proc is not writable \("):
        check_writable(Path("/proc/x"), "training.export_hf")


def test_a_tracker_that_is_not_installed_is_named():
    check_trackers(["jsonl", "tensorboard"])
    with pytest.raises(UserError, match="training.trackers: 'no_such_tracker' is not installed"):
        check_trackers(["jsonl", "no_such_tracker"])
