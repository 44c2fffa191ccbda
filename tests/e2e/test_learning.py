"""The learning gate: from random weights to a solved task. The quickstart's tests pass it with two processes."""

from tests.e2e.runs import metrics, post_train


def test_one_process_learns_the_task(workspace, tmp_path):
    post_train(workspace.arguments("grpo", tmp_path / "run", "training.train_iters=64"))
    lines = metrics(tmp_path / "run")
    assert lines[0]["critic/score/mean"] < 0.1
    assert max(line["critic/score/mean"] for line in lines) >= 0.9
    assert lines[-1]["actor/entropy"] < lines[0]["actor/entropy"] / 2
