"""KL terms against a reference model, in the actor's processes and in its own."""

import pytest

from tests.e2e.runs import ACTOR, SHORT, metrics, post_train, run_process

REF = "actor_rollout_ref.ref"
KL_LOSS = ["algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0.1", f"{ACTOR}.ppo_mini_batch_size=32"]
THREE = [*SHORT, "training.train_iters=3", f"{ACTOR}.lr_decay_style=constant"]


def check_kl(lines):
    """At first the reference is the actor, afterwards the actor moves away; one step an iteration, so k3 shows it."""
    assert lines[0]["actor/kl_loss"] == pytest.approx(0, abs=1e-9)
    assert lines[2]["actor/kl_loss"] > 1e-7
    assert all(line["rollout/logprob_deviation_max"] <= 1e-5 for line in lines)


def test_a_reference_that_shares_the_process_stays_as_it_was(workspace, tmp_path):
    post_train(workspace.arguments("grpo", tmp_path / "run", *THREE, *KL_LOSS))
    check_kl(metrics(tmp_path / "run"))


def test_the_kl_term_may_belong_to_the_reward(workspace, tmp_path):
    overrides = [*THREE, "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.1"]
    post_train(workspace.arguments("grpo", tmp_path / "run", *overrides))
    lines = metrics(tmp_path / "run")
    assert lines[0]["critic/kl/mean"] == pytest.approx(0, abs=1e-5)
    assert abs(lines[2]["critic/kl/mean"]) > 1e-5
    assert lines[0]["critic/rewards/mean"] == pytest.approx(lines[0]["critic/score/mean"], abs=1e-5)
    penalty = lines[2]["critic/score/mean"] - lines[2]["critic/rewards/mean"]
    assert abs(penalty) > 1e-6 and (penalty > 0) == (lines[2]["critic/kl/mean"] > 0)


@pytest.mark.slow
@pytest.mark.ray
def test_a_reference_in_its_own_processes_has_its_own_layout(workspace, tmp_path):
    post_train(workspace.arguments("grpo", tmp_path / "shared", *THREE, *KL_LOSS))
    layouts = [f"{ACTOR}.tensor_model_parallel_size=2", f"{REF}.tensor_model_parallel_size=1", "resource_pool.ref=1"]
    overrides = [*THREE, *KL_LOSS, "training.executor=ray", *layouts]
    run_process(workspace.arguments("grpo", tmp_path / "apart", *overrides))
    check_kl(metrics(tmp_path / "apart"))
    assert sorted(path.name for path in (tmp_path / "apart/logs").iterdir()) == [
        *("actor_rollout_rank0.log", "actor_rollout_rank1.log", "ref_rank0.log"),
    ]
    for ours, theirs in zip(metrics(tmp_path / "apart"), metrics(tmp_path / "shared"), strict=True):
        for name in ("critic/score/mean", "actor/pg_loss", "actor/entropy", "actor/kl_loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
