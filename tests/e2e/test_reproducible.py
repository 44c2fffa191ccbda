"""The same seed gives the same run, whatever the sizes of micro-batches and the company a sequence is computed in."""

import pytest

from tests.e2e.runs import ACTOR, SHORT, metrics, post_train, samples

THREE = [*SHORT, "training.train_iters=3"]


def run(workspace, run_dir, *overrides):
    post_train(workspace.arguments("grpo", run_dir, *THREE, *overrides))
    return metrics(run_dir)


def test_two_runs_of_one_seed_are_identical_and_of_another_are_not(workspace, tmp_path):
    first, second = (run(workspace, tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert samples(tmp_path / "first") == samples(tmp_path / "second")
    assert run(workspace, tmp_path / "third", "training.seed=1") != first


@pytest.mark.parametrize(
    "sizes",
    [
        [f"{ACTOR}.micro_batch_size=1"],
        [f"{ACTOR}.max_tokens_per_micro_batch=40"],
        [f"{ACTOR}.num_samples_per_step=5"],
        [f"{ACTOR}.max_kv_tokens=64"],
        ["reward.num_workers=3"],
    ],
    ids=lambda sizes: sizes[0].rpartition(".")[2],
)
def test_sizes_that_only_cost_time_do_not_change_the_run(sizes, workspace, tmp_path):
    expected, found = run(workspace, tmp_path / "one"), run(workspace, tmp_path / "two", *sizes)
    for ours, theirs in zip(found, expected, strict=True):
        counts = {"rollout/decode_steps"}  # how the work was cut
        deviations = {"rollout/logprob_deviation_max"}  # rounding itself
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - counts - deviations:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name


def test_the_first_update_is_on_policy_at_any_temperature(workspace, tmp_path):
    overrides = [f"{ACTOR}.temperature=0.7", f"{ACTOR}.ppo_mini_batch_size=32", "training.train_iters=2"]
    for line in run(workspace, tmp_path / "run", *overrides):
        assert line["rollout/logprob_deviation_max"] <= 1e-5
        assert line["actor/ratio_deviation_max"] <= 1e-5
