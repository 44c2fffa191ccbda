"""The learning gate: from random weights to a solved task. The quickstart's test passes it with tensor parallelism."""

import pytest

from tests.e2e.runs import ACTOR, metrics, post_train, run_process

LAYOUTS = {"pp2": f"{ACTOR}.pipeline_model_parallel_size=2", "dp2": "resource_pool.actor_rollout=2"}


def check_learning(lines: list[dict[str, float]]) -> None:
    assert lines[0]["critic/score/mean"] < 0.1
    assert max(line["critic/score/mean"] for line in lines) >= 0.9
    assert lines[-1]["actor/entropy"] < lines[0]["actor/entropy"] / 2


def test_one_process_learns_the_task(workspace, tmp_path):
    post_train(workspace.arguments("grpo", tmp_path / "run", "training.train_iters=64"))
    check_learning(metrics(tmp_path / "run"))


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_learn_the_task(layout, workspace, tmp_path):
    overrides = ["training.executor=ray", "training.train_iters=64", LAYOUTS[layout]]
    run_process(workspace.arguments("grpo", tmp_path / "run", *overrides))
    check_learning(metrics(tmp_path / "run"))
