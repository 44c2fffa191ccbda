"""PPO with its models in processes of their own: phases side by side, separate generation ranks, a dead critic."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.processes import assert_gone, command_line, descendants
from tests.e2e.runs import ACTOR, finish, lines_logged, metrics, post_train, run_process, samples, start, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray]

RAY = ["training.executor=ray"]
FOUR_POOLS = [
    "resource_pool.actor_rollout=2",
    "resource_pool.critic=1",
    "resource_pool.ref=1",
    "resource_pool.reward=1",
    f"{ACTOR}.tensor_model_parallel_size=2",
    "actor_rollout_ref.ref.tensor_model_parallel_size=1",
    "critic.tensor_model_parallel_size=1",
]
PHASES = {"generate", "reward", "ref", "values", "adv", "update_critic", "update_actor", "weight_sync"}
LAYOUTS = {
    "tp2-to-tp1": ({f"{ACTOR}.tensor_model_parallel_size": 2}, 1),
    "pp2-to-tp2": ({f"{ACTOR}.pipeline_model_parallel_size": 2}, 2),
    "dp2-to-tp1": ({}, 1),
}


def intervals(line: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Phase -> (begin, end) of one line of metrics.jsonl."""
    begins = {name.removeprefix("timing/begin/"): time for name, time in line.items() if "timing/begin/" in name}
    return {name: (begin, begin + line[f"timing/{name}"]) for name, begin in begins.items()}


def intersect(*spans: tuple[float, float]) -> bool:
    return max(begin for begin, _ in spans) < min(end for _, end in spans)


def test_phases_that_need_not_wait_for_each_other_do_not(ppo_workspace, tmp_path):
    more = ["training.train_iters=3", "training.global_batch_size=64"]
    run_process(ppo_workspace.arguments("ppo", tmp_path / "run", *RAY, *FOUR_POOLS, *more))
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        spans = intervals(line)
        assert PHASES <= spans.keys()
        assert intersect(spans["ref"], spans["values"], spans["reward_model"], spans["old_logprobs"])
        assert intersect(spans["update_actor"], spans["update_critic"])
        # and what depends on another does wait for it
        assert spans["generate"][1] <= spans["values"][0] and spans["values"][1] <= spans["adv"][0]
        assert spans["adv"][1] <= min(spans["update_actor"][0], spans["update_critic"][0])
    logs = {path.name for path in (tmp_path / "run/logs").iterdir()}
    assert logs == {f"{name}.log" for name in ("actor_rollout_rank0", "actor_rollout_rank1", "critic_rank0")} | {
        "ref_rank0.log",
        "reward_rank0.log",
    }


GREEDY = [
    "training.train_iters=3",
    "training.global_batch_size=40",
    f"{ACTOR}.do_sample=false",
    f"{ACTOR}.ppo_mini_batch_size=20",
    "critic.critic_mini_batch_size=20",
    f"{ACTOR}.lr=3e-3",
]


@pytest.fixture(scope="module")
def greedy_responses(ppo_workspace, tmp_path_factory) -> dict[str, dict[int, str]]:
    """Samples file -> prompt -> response, of one process: every prompt in every iteration."""
    run_dir = tmp_path_factory.mktemp("greedy") / "run"
    post_train(ppo_workspace.arguments("ppo", run_dir, *GREEDY))
    found = responses_of(run_dir)
    assert len(found) == 3
    first, second, third = found.values()
    assert first != second != third  # the second and third show whether updates arrived
    return found


def responses_of(run_dir: Path) -> dict[str, dict[int, str]]:
    return {
        file: {row["prompt_index"]: row["response"] for row in rows} for file, rows in sorted(samples(run_dir).items())
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_generation_ranks_give_the_tokens_that_training_ranks_would(name, greedy_responses, ppo_workspace, tmp_path):
    layout, inference = LAYOUTS[name]
    more = [f"{key}={value}" for key, value in layout.items()]
    more += [f"{key.replace(ACTOR, 'actor_rollout_ref.ref')}=1" for key in layout]
    more += ["resource_pool.critic=1", "resource_pool.ref=critic", "resource_pool.reward=critic"]
    more += [f"{ACTOR}.num_gpus_for_infer={inference}", f"{ACTOR}.inference_tensor_model_parallel_size={inference}"]
    more += [f"resource_pool.actor_rollout={2 + inference}"]
    run_process(ppo_workspace.arguments("ppo", tmp_path / "run", *RAY, *GREEDY, *more))
    assert responses_of(tmp_path / "run") == greedy_responses
    assert all(line["rollout/logprob_deviation_max"] < 1e-4 for line in metrics(tmp_path / "run"))
    assert len(list((tmp_path / "run/logs").glob("rollout_rank*.log"))) == inference
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert all(PHASES <= intervals(line).keys() for line in lines)


def logs_to(pid: int) -> str:
    """Name of the file that a process writes its output to."""
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1")).name
    except OSError:
        return ""


def test_a_killed_critic_ends_the_run_with_its_obituary_and_the_same_command_resumes(ppo_workspace, tmp_path):
    run_dir = tmp_path / "run"
    # Almost all of an iteration is the critic's update, in the middle of which it is killed.
    more = ["critic.critic_update_epochs=80", "training.save_interval=2", "training.train_iters=4"]
    arguments = ppo_workspace.arguments("ppo", run_dir, *RAY, *FOUR_POOLS, *more)
    process = start(arguments)
    wait_until(process, lambda: lines_logged(run_dir) >= 3)
    started = descendants(process.pid)
    (critic,) = [pid for pid, _ in started if logs_to(pid) == "critic_rank0.log"]
    begin, end = intervals(json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1]))["update_critic"]
    time.sleep((begin + end) / 2)
    # between two steps it is idle for an instant
    wait_until(process, lambda: command_line(critic).startswith("ray::RankProcess.call"))
    assert lines_logged(run_dir) == 3
    os.kill(critic, signal.SIGKILL)
    killed_at = time.monotonic()
    outcome = finish(process, timeout_s=60)
    assert time.monotonic() - killed_at < 60
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert re.search(rf"critic rank 0 \(pid {critic}\) was ended by signal 9", outcome.err), outcome.err
    assert "critic_rank0.log" in outcome.err
    assert_gone(started, timeout_s=90)

    assert sorted(path.name for path in (run_dir / "checkpoints").glob("*.json")) == ["iter_0000002.json"]
    assert "resuming after iteration 2 of 4" in run_process(arguments).out
    assert [line["iteration"] for line in metrics(run_dir)] == [1, 2, 3, 4]


def test_a_sharded_run_with_four_pools_equals_the_one_in_one_process(ppo_workspace, tmp_path):
    """Invariant 1 end to end, with the critic at another layout than the actor's."""
    common = ["training.train_iters=2", f"{ACTOR}.lr=1e-4", "critic.lr=1e-4"]
    post_train(ppo_workspace.arguments("ppo", tmp_path / "one", *common))
    pools = [*FOUR_POOLS[1:-1], "critic.pipeline_model_parallel_size=2", "resource_pool.critic=2"]
    pools += ["resource_pool.actor_rollout=2", "critic.tensor_model_parallel_size=1"]
    run_process(ppo_workspace.arguments("ppo", tmp_path / "many", *RAY, *common, *pools))
    one, many = metrics(tmp_path / "one"), metrics(tmp_path / "many")
    responses = [
        [[row["response"] for row in rows] for rows in samples(tmp_path / name).values()] for name in ("one", "many")
    ]
    assert responses[0] == responses[1]
    for key in ("actor/grad_norm", "critic/vf_loss", "critic/grad_norm", "critic/kl/mean", "reward/model/mean"):
        ours, theirs = [line[key] for line in many], [line[key] for line in one]
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6), key
