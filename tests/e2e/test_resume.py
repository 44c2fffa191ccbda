"""A run that was killed and started again by the same command equals the one that was not, bit for bit."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.errors import UserError
from mindllm.formats.torch_dist import TorchDistReader
from tests.e2e.processes import assert_gone
from tests.e2e.runs import (
    ACTOR,
    SHORT,
    SHORT_SEQUENCES,
    Workspace,
    final_weights,
    kill_when,
    lines_logged,
    metrics,
    post_train,
    post_train_until,
    run_process,
    samples,
    start,
)
from tests.e2e.tiny import write_model

SFT = ["training.train_iters=30", "training.lr_decay_style=cosine", "training.lr_warmup_iters=2"]
RAY = ["training.executor=ray", f"{ACTOR}.tensor_model_parallel_size=2"]


def assert_equal_runs(run_dir: Path, uninterrupted: Path, tmp: Path, iterations: int = 6) -> None:
    """Metrics without timings, samples, and every tensor of the last checkpoint."""
    assert [line["iteration"] for line in metrics(run_dir)] == list(range(1, iterations + 1))
    assert metrics(run_dir) == metrics(uninterrupted)
    ours, theirs = final_weights(run_dir, tmp / "ours"), final_weights(uninterrupted, tmp / "theirs")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.fixture(scope="module")
def uninterrupted(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
    post_train(workspace.arguments("grpo", run_dir, *SHORT))
    return run_dir


@pytest.fixture
def held(tmp_path: Path) -> Callable[[int], Callable[[], bool]]:
    """``held(n)`` makes the reward stop in the middle of the n-th iteration; the result says whether it has."""

    def prepare(iteration: int) -> Callable[[], bool]:
        (tmp_path / "hold").write_text(str((iteration - 1) * SHORT_SEQUENCES + 10))
        return (tmp_path / "held").exists

    return prepare


def release(tmp_path: Path) -> None:
    (tmp_path / "hold").unlink()


@pytest.mark.parametrize(
    ("save_interval", "killed_in", "resumed_after"),
    [(3, 5, 3), *(pytest.param(*other, marks=pytest.mark.slow) for other in ((1, 4, 3), (3, 2, 0)))],
)
def test_a_run_killed_in_an_iteration_resumes_to_the_same_end(
    save_interval, killed_in, resumed_after, workspace, uninterrupted, held, tmp_path
):
    run_dir = tmp_path / "run"
    overrides = [*SHORT, *workspace.own_rewards(tmp_path), f"training.save_interval={save_interval}"]
    arguments = workspace.arguments("grpo", run_dir, *overrides)
    started = kill_when(start(arguments), held(killed_in))
    assert started, "the reward process was not seen"
    assert_gone(started)
    assert lines_logged(run_dir) == killed_in - 1
    release(tmp_path)

    resumed = post_train(arguments)
    assert (f"resuming after iteration {resumed_after} of 6" in resumed.out) == (resumed_after > 0)
    assert_equal_runs(run_dir, uninterrupted, tmp_path)
    assert samples(run_dir) == samples(uninterrupted)
    assert len(samples(run_dir)) == 6


def test_a_run_killed_while_it_saves_resumes_from_the_checkpoint_before(workspace, uninterrupted, tmp_path):
    run_dir = tmp_path / "run"
    arguments = workspace.arguments("grpo", run_dir, *SHORT, "training.save_interval=2")
    unfinished = run_dir / "checkpoints/actor/iter_0000004.tmp"
    kill_when(start(arguments), unfinished.exists)
    assert lines_logged(run_dir) == 4
    in_time = unfinished.exists()  # else the machine was so busy that the save had ended: a kill like the others

    resumed = post_train(arguments)
    assert f"resuming after iteration {2 if in_time else 4} of 6" in resumed.out
    assert not unfinished.exists()
    assert_equal_runs(run_dir, uninterrupted, tmp_path)
    assert samples(run_dir) == samples(uninterrupted)


def test_a_directory_without_its_manifest_is_what_an_interrupted_save_left(workspace, uninterrupted, tmp_path):
    run_dir = tmp_path / "run"
    arguments = workspace.arguments("grpo", run_dir, *SHORT, "training.save_interval=2")
    post_train(arguments)
    (run_dir / "checkpoints/iter_0000006.json").unlink()
    for file in (run_dir / "checkpoints/actor/iter_0000006").glob("*.distcp"):
        file.write_bytes(b"half")
    assert "resuming after iteration 4 of 6" in post_train(arguments).out
    assert_equal_runs(run_dir, uninterrupted, tmp_path)


def test_a_finished_run_does_nothing_when_it_is_started_again(workspace, uninterrupted):
    before = metrics(uninterrupted)
    assert "changed since" not in post_train(workspace.arguments("grpo", uninterrupted, *SHORT)).out
    assert metrics(uninterrupted) == before


def test_a_check_says_where_a_run_goes_on(workspace, uninterrupted):
    assert (
        "ok: resume: after iteration 6 of 9"
        in post_train(workspace.arguments("grpo", uninterrupted, *SHORT, "training.train_iters=9", "--check")).out
    )


def test_a_changed_key_is_named_when_a_run_is_started_again(workspace, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *SHORT, f"{ACTOR}.lr=2e-3"))
    assert f"changed since the run was last started: {ACTOR}.lr: 0.001 -> 0.002" in outcome.out


def test_a_run_whose_answers_were_changed_goes_on_only_where_that_is_allowed(workspace, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    shutil.copytree(workspace.data, tmp_path / "data")
    columns = tmp_path / "data/train_columns.parquet"
    digits = pq.read_table(columns)
    pq.write_table(digits.set_column(digits.column_names.index("digit"), "digit", digits["digit"][::-1]), columns)
    overrides = [*SHORT, "training.train_iters=7", f"{ACTOR}.data_path={tmp_path / 'data/train'}"]
    refused = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides), status=2)
    assert f"error: data_path: {tmp_path}/data/train has other contents than {workspace.data}/train" in refused.err
    checked = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides, "--check"), status=2)
    assert checked.err == refused.err
    assert metrics(tmp_path / "run") == metrics(uninterrupted)
    allowed = [*overrides, "training.allow_changed_data=true"]
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *allowed))
    assert f"data_path: {tmp_path}/data/train has other contents" in outcome.out
    assert [line["iteration"] for line in metrics(tmp_path / "run")] == list(range(1, 8))


def test_a_copied_run_goes_on_in_its_own_directory(workspace, uninterrupted, tmp_path):
    """By the resolved configuration it holds, which names no directory that follows from run_dir."""
    shutil.copytree(uninterrupted, tmp_path / "copy")
    before = sorted(path.name for path in (uninterrupted / "checkpoints/actor").iterdir())
    where = ["--config-name", tmp_path / "copy/config.yaml", f"training.run_dir={tmp_path / 'copy'}"]
    post_train([*where, "training.train_iters=7"])
    assert sorted(path.name for path in (uninterrupted / "checkpoints/actor").iterdir()) == before
    assert (tmp_path / "copy/checkpoints/actor/iter_0000007").is_dir()


def changed_in_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(64) + content[middle + 64 :]


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("*.distcp", lambda content: content[:100], "is truncated: 100 bytes"),
        ("*.distcp", lambda content: bytes(len(content)), "is damaged at tensor decoder.final_layernorm.weight"),
        ("*.distcp", changed_in_the_middle, r"is damaged at tensor optimizer\.\S+: its entry data/0 does not have its"),
        ("mindllm.json", lambda content: bytes(200), "is broken"),
        ("common.pt", lambda content: content[:-1], "is damaged: File is not a zip file"),
        ("common.pt", lambda content: b"", "is damaged: File is not a zip file"),
        ("metadata.json", lambda content: b"", "is damaged: Expecting value"),
    ],
)
def test_a_damaged_checkpoint_of_the_run_is_named_with_the_way_back(
    workspace, uninterrupted, tmp_path, name, damage, said
):
    shutil.copytree(uninterrupted, tmp_path / "run")
    damaged = next((tmp_path / "run/checkpoints/actor/iter_0000006").glob(name))
    damaged.write_bytes(damage(damaged.read_bytes()))
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *SHORT, "training.train_iters=7"), status=2)
    (error,) = outcome.err.splitlines()
    assert re.search(f"{damaged} {said}", error)
    if name != "*.distcp":
        arguments = workspace.arguments("grpo", tmp_path / "run", *SHORT, "training.train_iters=7", "--check")
        assert post_train(arguments, status=2).err == outcome.err
    assert "run/checkpoints/iter_0000006.json to go back" in error


def test_a_damaged_weight_is_not_exported(workspace, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted / "checkpoints/actor", tmp_path / "actor")
    (data,) = (tmp_path / "actor/iter_0000006").glob("*.distcp")
    with TorchDistReader(data.parent) as reader:
        weight = reader.read("output_layer.weight").tobytes()
    data.write_bytes(data.read_bytes().replace(weight, weight[:-1] + b"?"))
    with pytest.raises(UserError, match=f"{data} is damaged at tensor output_layer.weight: its entry data/0 does not"):
        convert_mcore_to_hf(tmp_path / "actor", tmp_path / "hf")


def test_a_run_is_not_resumed_with_another_architecture(workspace, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    write_model(tmp_path / "hf", num_layers=1)
    convert_hf_to_mcore(tmp_path / "hf", tmp_path / "mcore")
    overrides = [*SHORT, "training.train_iters=8", f"{ACTOR}.load={tmp_path / 'mcore'}"]
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides), status=2)
    assert "mcore is another architecture than the run in" in outcome.err
    assert metrics(tmp_path / "run") == metrics(uninterrupted)


def test_sft_interrupted_after_unsaved_iterations_resumes_to_the_same_end(workspace, tmp_path):
    post_train(workspace.arguments("sft", tmp_path / "whole", *SFT))
    arguments = workspace.arguments("sft", tmp_path / "run", *SFT, "training.save_interval=7")
    post_train_until(11, arguments)
    assert "resuming after iteration 7 of 30" in post_train(arguments).out
    assert_equal_runs(tmp_path / "run", tmp_path / "whole", tmp_path, iterations=30)


@pytest.mark.slow
@pytest.mark.ray
def test_a_sharded_run_under_ray_resumes_to_the_same_end(workspace, held, tmp_path):
    run_process(workspace.arguments("grpo", tmp_path / "whole", *SHORT, *RAY))
    overrides: list[Any] = [*SHORT, *RAY, *workspace.own_rewards(tmp_path), "training.save_interval=1"]
    arguments = workspace.arguments("grpo", tmp_path / "run", *overrides)
    started = kill_when(start(arguments), held(4))
    assert len(started) > 5, "Ray's processes were not seen"
    # Ray's own agents try for a minute to report their raylet's end, which nothing waits for.
    assert_gone(started, timeout_s=30, apart_from=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    release(tmp_path)
    assert "resuming after iteration 3 of 6" in run_process(arguments).out
    assert_equal_runs(tmp_path / "run", tmp_path / "whole", tmp_path)
    assert samples(tmp_path / "run") == samples(tmp_path / "whole")
