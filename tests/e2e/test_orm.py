"""A reward model is trained on pairs by the real command, resumes, and starts critic and reward of a PPO run."""

import json

import pytest
import torch
from safetensors.torch import load_file

from mindllm import posttrain
from mindllm.checkpoint import latest_iteration_dir, read_checkpoint_info
from mindllm.convert.cli import main as convert
from tests.e2e.runs import metrics, post_train, post_train_until, run_here
from tests.e2e.test_bad_input import check_refusal
from tests.e2e.tiny_ppo import ORM_ITERS, index_pairs


def test_accuracy_on_held_out_pairs_rises(ppo_workspace):
    lines = metrics(ppo_workspace.orm)
    assert len(lines) == ORM_ITERS
    assert lines[0]["reward/accuracy"] < 0.7
    assert lines[-1]["reward/accuracy"] > 0.9 and lines[-1]["eval/accuracy"] > 0.9
    assert lines[-1]["eval/loss"] < lines[0]["reward/loss"] / 2
    assert lines[-1]["reward/chosen_score"] > lines[-1]["reward/rejected_score"]


def test_the_checkpoint_is_a_reward_model_that_transformers_scores_alike(ppo_workspace, tmp_path):
    from transformers import AutoModelForSequenceClassification

    info = read_checkpoint_info(latest_iteration_dir(ppo_workspace.reward))
    assert info.head == "reward" and info.architecture.scalar_head
    kinds = ["--load-model-type", "mcore", "--save-model-type", "hf"]
    out = run_here(convert, [*kinds, "--load-dir", ppo_workspace.reward, "--save-dir", tmp_path / "hf"])
    assert out.status == 0, out.err
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    right = 0
    rows = [json.loads(line) for line in (ppo_workspace.pairs / "heldout.jsonl").read_text().splitlines()]
    vocabulary = json.loads((ppo_workspace.hf / "tokenizer.json").read_text())["model"]["vocab"]
    for row in rows:
        scores = []
        for kind in ("chosen", "rejected"):
            ids = [vocabulary[word] for word in f"{row['instruction']} {row[kind]}".split()] + [0]
            hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            scores.append(model.score(hidden).item())
        right += scores[0] > scores[1]
    last = metrics(ppo_workspace.orm)[-1]
    assert right / len(rows) == pytest.approx(last["eval/accuracy"], abs=0.02)


def test_an_interrupted_run_resumes_to_the_same_end(ppo_workspace, tmp_path):
    more = ["training.save_interval=4", "training.lr_decay_style=linear", "training.train_iters=12"]
    arguments = ppo_workspace.arguments("orm", tmp_path / "run", *more)
    post_train(ppo_workspace.arguments("orm", tmp_path / "whole", *more))
    post_train_until(7, arguments)
    assert "resuming after iteration 4 of 12" in post_train(arguments).out
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    weights = []
    for name in ("run", "whole"):
        kinds = ["--load-model-type", "mcore", "--save-model-type", "hf"]
        where = ["--load-dir", tmp_path / name / "checkpoints/actor", "--save-dir", tmp_path / f"{name}-hf"]
        assert run_here(convert, [*kinds, *where]).status == 0
        weights.append(load_file(tmp_path / f"{name}-hf/model.safetensors"))
    assert "score.weight" in weights[0] and "lm_head.weight" not in weights[0]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[1])


def test_margins_ask_for_a_larger_lead(ppo_workspace, tmp_path):
    rows = [json.loads(line) for line in (ppo_workspace.pairs / "train.jsonl").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**row, "margin": 2.0}) + "\n" for row in rows))
    index_pairs(ppo_workspace, tmp_path / "rows.jsonl", tmp_path / "pairs")
    short = ["training.train_iters=1", "training.eval_interval=null", "training.eval_data_path=null"]
    post_train(ppo_workspace.arguments("orm", tmp_path / "without", *short))
    post_train(ppo_workspace.arguments("orm", tmp_path / "with", *short, f"training.data_path={tmp_path}/pairs"))
    (plain,), (wider,) = metrics(tmp_path / "without"), metrics(tmp_path / "with")
    assert wider["reward/accuracy"] == plain["reward/accuracy"]
    assert plain["reward/loss"] + 1.0 < wider["reward/loss"] < plain["reward/loss"] + 2.0


BAD_RUNS = {
    "language model without a head": (["training.load={root}/mcore"], ["load", "is a language model", "--head reward"]),
    "prompts instead of pairs": (["training.data_path={root}/data/train"], ["data/train", "has no pairs"]),
    "SFT data instead of pairs": (["training.data_path={root}/data/sft"], ["data/sft", "has no pairs"]),
    "held-out prompts": (["training.eval_data_path={root}/data/heldout"], ["data/heldout", "has no pairs"]),
    "pairs longer than the window": (["training.seq_length=6"], ["data_path", "seq_length is 6"]),
    "a critic": (["critic.load={root}/reward"], ["critic"]),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_run_that_cannot_work_is_refused_in_one_sentence(name, ppo_workspace, tmp_path):
    overrides, fragments = BAD_RUNS[name]
    texts = [text.format(root=ppo_workspace.root) for text in overrides]
    outcome = run_here(posttrain.main, ppo_workspace.arguments("orm", tmp_path / "run", *texts))
    check_refusal(outcome, fragments)
    assert not (tmp_path / "run").exists()
