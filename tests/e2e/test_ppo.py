"""PPO by the real command in one process: it learns, resumes bit for bit, and weighs what its rewards say."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mindllm.convert.cli import main as convert
from tests.e2e import tiny
from tests.e2e.runs import ACTOR, Workspace, metrics, post_train, post_train_until, run_here, samples

RESUMABLE = ["training.save_interval=2", f"{ACTOR}.lr_decay_style=linear", "critic.lr_decay_style=cosine"]
ROLES = ("actor", "critic")
SEQUENCES = 32  # of one iteration


def exported(run_dir: Path, role: str, target: Path) -> dict[str, torch.Tensor]:
    """A role's last checkpoint as Hugging Face tensors."""
    kinds = ["--load-model-type", "mcore", "--save-model-type", "hf"]
    outcome = run_here(convert, [*kinds, "--load-dir", run_dir / "checkpoints" / role, "--save-dir", target])
    assert outcome.status == 0, outcome.err
    return load_file(target / "model.safetensors")


def saved_state(run_dir: Path, iteration: int) -> dict[str, Any]:
    return json.loads((run_dir / f"checkpoints/iter_{iteration:07}.json").read_text())


def rules(workspace: Workspace, directory: Path) -> list[str]:
    """A rule beside the model; in one process, which counts the calls."""
    return [*workspace.own_rewards(directory), "reward.num_workers=1"]


@pytest.fixture(scope="module")
def uninterrupted(ppo_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six iterations whose reward is the model's score plus a rule's."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    post_train(ppo_workspace.arguments("ppo", directory / "run", *RESUMABLE, *rules(ppo_workspace, directory)))
    return directory / "run"


def test_an_interrupted_run_resumes_to_the_same_end(ppo_workspace, uninterrupted, tmp_path):
    """Also where the directories of the two models that do not train have gained an iteration meanwhile."""
    run_dir = tmp_path / "run"
    frozen = {"ref": "mcore", "reward": "reward"}
    for role, name in frozen.items():
        shutil.copytree(ppo_workspace.root / name, tmp_path / role)
    loads = [f"actor_rollout_ref.ref.load={tmp_path / 'ref'}", f"reward.load={tmp_path / 'reward'}"]
    arguments = ppo_workspace.arguments("ppo", run_dir, *RESUMABLE, *rules(ppo_workspace, tmp_path), *loads)
    post_train_until(4, arguments)
    for role, other in (("ref", "actor"), ("reward", "critic")):
        shutil.copytree(uninterrupted / "checkpoints" / other / "iter_0000006", tmp_path / role / "iter_0000099")
        (tmp_path / role / "latest_checkpointed_iteration.txt").write_text("99\n")

    resumed = post_train(arguments).out
    assert "resuming after iteration 2 of 6" in resumed
    for role in frozen:
        assert re.search(rf"{role}.load: .*{role}/iter_\d+, as when the run was begun, although iter_0000099", resumed)
    assert metrics(run_dir) == metrics(uninterrupted)
    assert samples(run_dir) == samples(uninterrupted)
    ours, theirs = (saved_state(path, 6)["state"] for path in (run_dir, uninterrupted))
    iterations = [[state["frozen"].pop(role)["iteration"] for role in frozen] for state in (ours, theirs)]
    assert iterations[0] == iterations[1]
    files = [list(state.pop("reward_files").values()) for state in (ours, theirs)]  # each run has its own copy
    assert files[0] == files[1]
    assert ours == theirs
    for role in ROLES:
        ours = exported(run_dir, role, tmp_path / f"ours-{role}")
        theirs = exported(uninterrupted, role, tmp_path / f"theirs-{role}")
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), role


def test_the_adaptive_coefficient_moves_and_is_saved(uninterrupted):
    lines = metrics(uninterrupted)
    coefficients = [line["critic/kl_coef"] for line in lines]
    assert coefficients[0] == 0.05 and len(set(coefficients)) == 6
    for now, then in zip(lines, lines[1:], strict=False):
        error = min(max(now["critic/kl/mean"] / 0.02 - 1, -0.2), 0.2)
        assert then["critic/kl_coef"] == pytest.approx(now["critic/kl_coef"] * (1 + error * SEQUENCES / 100))
    state = saved_state(uninterrupted, 4)["state"]
    assert state["kl_controller"]["kl_coef"] == coefficients[4]


def test_every_role_is_saved_in_a_directory_of_its_own(uninterrupted, tmp_path):
    for role in ROLES:
        iterations = sorted(path.name for path in (uninterrupted / "checkpoints" / role).glob("iter_*"))
        assert iterations == ["iter_0000002", "iter_0000004", "iter_0000006"]
    critic = exported(uninterrupted, "critic", tmp_path / "critic")
    actor = exported(uninterrupted, "actor", tmp_path / "actor")
    assert "score.weight" in critic and "lm_head.weight" not in critic
    assert "lm_head.weight" in actor and "score.weight" not in actor


def test_the_metrics_tell_of_both_models(uninterrupted):
    for line in metrics(uninterrupted):
        assert line["rollout/logprob_deviation_max"] < 1e-4
        assert line["actor/ppo_kl"] == pytest.approx(0, abs=0.05) and line["actor/lr"] > 0
        assert line["critic/vf_loss"] > 0 and line["critic/grad_norm"] > 0
        assert line["critic/vf_explained_var"] <= 1


def test_the_reward_is_the_models_score_and_the_rules_weighted(ppo_workspace, tmp_path):
    rule = f"{{name: fraction_right, weight: 3.0, path: {ppo_workspace.root}/task/rewards.py}}"
    short = ["training.train_iters=1", f"{ACTOR}.ppo_mini_batch_size=32", "critic.critic_mini_batch_size=32"]
    runs = {
        "both": [f"reward.functions=[{rule}]", "reward.weight=0.5"],
        "model": ["reward.weight=0.5"],
        "rule": [f"reward.functions=[{rule}]", "reward.load=null"],
    }
    rewards = {}
    for name, overrides in runs.items():
        post_train(ppo_workspace.arguments("ppo", tmp_path / name, *short, *overrides))
        (rows,) = samples(tmp_path / name).values()
        rewards[name] = torch.tensor([row["reward"] for row in rows], dtype=torch.float64)
        fractions = [sum(word == row["prompt"].split()[-1] for word in row["response"].split()[:4]) / 4 for row in rows]
    torch.testing.assert_close(rewards["rule"], 3.0 * torch.tensor(fractions, dtype=torch.float64))
    torch.testing.assert_close(rewards["both"], rewards["model"] + rewards["rule"])
    (line,) = metrics(tmp_path / "both")
    assert line["reward/model/mean"] == pytest.approx(float(rewards["model"].mean()) / 0.5, rel=1e-6)


def test_a_reward_model_with_another_tokenizer_reads_the_text_in_its_own_words(ppo_workspace, tmp_path):
    """The same reward model with its vocabulary in another order, and its embedding rows with it, scores alike."""
    order = [0, *range(len(tiny.VOCABULARY) - 1, 0, -1)]
    words = [tiny.VOCABULARY[number] for number in order]
    kinds = ["--load-model-type", "mcore", "--save-model-type", "hf"]
    where = ["--load-dir", ppo_workspace.reward, "--save-dir", tmp_path / "hf"]
    assert run_here(convert, [*kinds, *where]).status == 0
    tensors = load_file(tmp_path / "hf/model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][order].clone()
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "hf/model.safetensors", {"format": "pt"})
    tiny.write_tokenizer(tmp_path / "hf", words)
    kinds = ["--load-model-type", "hf", "--save-model-type", "mcore"]
    assert run_here(convert, [*kinds, "--load-dir", tmp_path / "hf", "--save-dir", tmp_path / "mcore"]).status == 0

    short = ["training.train_iters=1", "training.global_batch_size=8"]
    short += [f"{ACTOR}.ppo_mini_batch_size=8", "critic.critic_mini_batch_size=8"]
    rewards = {}
    for name, load in (("own", tmp_path / "mcore"), ("actors", ppo_workspace.reward)):
        post_train(ppo_workspace.arguments("ppo", tmp_path / name, *short, f"reward.load={load}"))
        (rows,) = samples(tmp_path / name).values()
        rewards[name] = [(row["response"], row["finish_reason"], row["reward"]) for row in rows]
    # The text has no end token of its own, and the template of the tiny tokenizer adds none: of responses that were
    # cut the two see the same tokens.
    compared = 0
    for (response, reason, reward), (same, _, expected) in zip(rewards["own"], rewards["actors"], strict=True):
        assert response == same
        if reason == "length" and len(response.split()) == 5:
            assert reward == pytest.approx(expected, abs=1e-4)
            compared += 1
    assert compared >= 4


def test_the_actor_waits_while_the_critic_warms_up(ppo_workspace, tmp_path):
    more = ["training.train_iters=2", "critic.critic_warmup_iters=1", f"{ACTOR}.ppo_mini_batch_size=32"]
    post_train(ppo_workspace.arguments("ppo", tmp_path / "run", *more))
    first, second = metrics(tmp_path / "run")
    assert "actor/pg_loss" not in first and first["critic/vf_loss"] > 0
    assert first["critic/kl/mean"] == pytest.approx(0, abs=1e-6)
    assert second["critic/kl/mean"] == pytest.approx(0, abs=1e-6)  # still the weights of the reference
    assert "actor/pg_loss" in second


def test_no_further_epoch_begins_beyond_the_target_kl(ppo_workspace, tmp_path):
    runs = {}
    for name, target in (("stopped", "1e-9"), ("free", "null")):
        more = ["training.train_iters=1", f"{ACTOR}.ppo_epochs=3", f"{ACTOR}.target_kl={target}"]
        post_train(ppo_workspace.arguments("ppo", tmp_path / name, *more, f"{ACTOR}.lr=1e-2"))
        runs[name] = metrics(tmp_path / name)[0]
    assert runs["free"]["actor/ppo_kl"] > 2 * runs["stopped"]["actor/ppo_kl"] > 0


@pytest.mark.long
def test_one_process_learns_the_task(ppo_workspace, tmp_path):
    """From random weights, with the rule's exact reward and a critic that has to learn it too."""
    rule = f"{{name: fraction_right, path: {ppo_workspace.root}/task/rewards.py}}"
    more = ["training.train_iters=80", "training.global_batch_size=256", f"{ACTOR}.ppo_mini_batch_size=128"]
    more += ["critic.critic_mini_batch_size=128", f"{ACTOR}.max_new_tokens=4", "algorithm.missing_eos_penalty=0"]
    more += ["reward.load=null", f"reward.functions=[{rule}]", "algorithm.kl_ctrl={type: fixed, kl_coef: 0}"]
    post_train(ppo_workspace.arguments("ppo", tmp_path / "run", *more))
    lines = metrics(tmp_path / "run")
    assert lines[0]["critic/score/mean"] < 0.1
    assert max(line["critic/score/mean"] for line in lines) >= 0.8
    assert lines[-1]["critic/vf_loss"] < 0.05
