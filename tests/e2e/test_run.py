"""What a run prints, leaves behind and can be asked for."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from mindllm.convert.cli import main as convert
from mindllm.preprocess.cli import main as preprocess
from tests.e2e.runs import ACTOR, SHORT, Workspace, final_weights, metrics, post_train, run_here, samples

TWO = [*SHORT, "training.train_iters=2"]
NAMES = (
    *("critic/score/mean", "critic/rewards/mean", "critic/advantages/mean", "response_length/mean"),
    *("prompt_length/mean", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/entropy", "actor/grad_norm"),
    *("actor/lr", "actor/skipped_steps", "rollout/logprob_deviation_max", "reward/fraction_right/mean"),
)


@pytest.fixture(scope="module")
def run(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with evaluation, export and all trackers."""
    root = tmp_path_factory.mktemp("run")
    evaluation = ["training.eval_interval=2", f"training.eval_data_path={workspace.data}/heldout"]
    more = [f"training.export_hf={root}/hf", "training.trackers=jsonl,tensorboard", "training.save_interval=1"]
    overrides = [*SHORT, *evaluation, *more, "training.keep_last_n=2", "training.sample_dump_interval=4"]
    outcome = post_train(workspace.arguments("grpo", root / "run", *overrides))
    (root / "printed.txt").write_text(outcome.out)
    return root / "run"


def test_metrics_have_the_names_users_know(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    for line in lines:
        assert set(NAMES) <= line.keys()
        for phase in ("generate", "reward", "old_logprobs", "update_actor", "iteration", "tokens_per_s"):
            assert line[f"timing/{phase}"] > 0
    assert all(line["rollout/logprob_deviation_max"] <= 1e-5 for line in lines)


def test_a_log_says_once_what_is_being_done_from_the_start_to_the_end(run):
    lines = (run.parent / "printed.txt").read_text().splitlines()
    began = [line for line in lines if "  " not in line and not line.startswith("finished")]
    assert began[0] == "ray_grpo: checking configuration, checkpoints and data"
    assert began[1] == "starting 1 rank of actor_rollout"
    assert began[2].startswith("loading ") and began[2].endswith(" as actor_rollout")
    assert began[3:] == [
        "iteration 1/6: generating responses: 0 of 32",
        "iteration 1/6: rewarding",
        "iteration 1/6: computing the actor's log-probs",
        "iteration 1/6: updating the actor",
        "iteration 1/6: saving a checkpoint",
        "iteration 2/6: evaluating: 0 of 10",
        f"exporting to {run.parent}/hf",
    ]


def test_the_progress_line_and_the_report_name_sampled_and_greedy_rewards(run):
    line = next(line for line in (run.parent / "printed.txt").read_text().splitlines() if "iteration 6/6  " in line)
    assert "sampled reward " in line and "greedy eval reward " in line
    report = json.loads((run / "report.json").read_text())
    assert report["sampled reward"]["metric"] == "critic/score/mean"
    assert report["greedy eval reward"]["metric"] == "eval/score/mean"


def test_memory_is_measured_for_every_kind_of_call_and_reported(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    calls = ("generate", "logprobs", "update")
    assert all(0.1 < line[f"memory/actor_{call}_peak_gib"] < 64 for line in lines for call in calls)
    # A model is loaded before the first iteration; what an iteration saves is measured after its metrics are written.
    assert [line["iteration"] for line in lines if "memory/actor_load_peak_gib" in line] == [1]
    assert [line["iteration"] for line in lines if "memory/actor_save_peak_gib" in line] == [2, 3, 4, 5, 6]
    report = json.loads((run / "report.json").read_text())
    assert report["peak_memory_gib"] >= max(line["memory/actor_update_peak_gib"] for line in lines)
    printed = (run.parent / "printed.txt").read_text()
    assert f"peak memory of a rank: {report['peak_memory_gib']:.1f} GiB, in {report['peak_memory_in']}" in printed


def test_held_out_prompts_are_evaluated_every_eval_interval(run):
    evaluated = [line["iteration"] for line in metrics(run) if "eval/score/mean" in line]
    assert evaluated == [2, 4, 6]


def test_samples_show_what_was_asked_answered_and_rewarded(run):
    dumps = samples(run)
    assert list(dumps) == ["iter_0000004.jsonl", "iter_0000006.jsonl"]
    rows = dumps["iter_0000004.jsonl"]
    assert len(rows) == 32
    for row in rows:
        assert set(row) == {
            *("prompt_index", "sample_index", "prompt", "response", "reward", "finish_reason", "response_length"),
        }
        assert row["finish_reason"] in ("stop", "length") and 1 <= row["response_length"] <= 4
        digit = row["prompt"].split()[-1]
        assert row["reward"] == sum(word == digit for word in row["response"].split()) / 4
    score = next(line["critic/score/mean"] for line in metrics(run) if line["iteration"] == 4)
    assert score == pytest.approx(sum(row["reward"] for row in rows) / 32)


def test_the_last_checkpoints_are_kept_and_named_by_the_tracker(run):
    actor = run / "checkpoints/actor"
    assert sorted(path.name for path in actor.iterdir()) == [
        *("iter_0000005", "iter_0000006", "latest_checkpointed_iteration.txt"),
    ]
    assert (actor / "latest_checkpointed_iteration.txt").read_text().strip() == "6"
    assert sorted(path.name for path in (run / "checkpoints").glob("*.json")) == [
        *("iter_0000005.json", "iter_0000006.json"),
    ]
    assert list((run / "tensorboard").iterdir())


def test_the_export_is_the_trained_model_and_transformers_reads_it(run, workspace, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = run.parent / "hf"
    model = AutoModelForCausalLM.from_pretrained(export)
    trained, before = final_weights(run, tmp_path / "again"), AutoModelForCausalLM.from_pretrained(workspace.hf)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    tokenizer = AutoTokenizer.from_pretrained(export)
    answer = model.generate(**tokenizer("say 7", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert answer.shape[1] <= 6


def test_a_base_model_stops_and_is_exported_as_the_template_of_its_data_says(workspace, tmp_path):
    """A tokenizer without chat template whose EOS, 0, is not what ends answers: that is the special token `then`."""
    from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer

    shutil.copytree(workspace.hf, tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(workspace.hf)
    tokenizer.add_tokens([AddedToken("then", special=True)])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf/chat_template.jinja").unlink()
    (tmp_path / "own.yaml").write_text('user: "{content} "\nheader: ""\nanswer: "{content} then"\n')
    where = ["--input", workspace.task / "train.jsonl", "--output-prefix", tmp_path / "train"]
    text = ["--tokenizer-name-or-path", tmp_path / "hf", "--prompt-type", tmp_path / "own.yaml"]
    handler = ["--handler-name", "PPOAlpacaStyleInstructionHandler", "--map-keys", '{"prompt": "prompt"}']
    assert run_here(preprocess, [*where, *text, *handler]).status == 0
    kinds = ["--load-model-type", "hf", "--save-model-type", "mcore"]
    assert run_here(convert, [*kinds, "--load-dir", tmp_path / "hf", "--save-dir", tmp_path / "mcore"]).status == 0
    overrides = [
        *TWO,
        "training.train_iters=1",
        f"{ACTOR}.load={tmp_path}/mcore",
        f"{ACTOR}.data_path={tmp_path}/train",
    ]
    arguments = workspace.arguments("grpo", tmp_path / "run", *overrides, f"training.export_hf={tmp_path}/export")
    (end,) = tokenizer("then")["input_ids"]
    assert f"ok: end tokens: then ({end}), <|endoftext|> (0)\n" in post_train([*arguments, "--check"]).out
    named = post_train([*arguments, f"{ACTOR}.eos_token_ids=[0]", "--check"]).out
    assert f"eos_token_ids: {end} (then), which ends answers in {tmp_path}/train, is missing" in named

    post_train(arguments)
    model, exported = (kind.from_pretrained(tmp_path / "export") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.generation_config.eos_token_id == model.config.eos_token_id == [end, 0]
    assert (exported.eos_token, exported.pad_token) == ("then", "<|endoftext|>")
    turns = [{"role": "user", "content": "say 7"}, {"role": "assistant", "content": "7"}]
    assert exported.apply_chat_template(turns[:1], add_generation_prompt=True, tokenize=False) == "say 7 "
    assert exported.apply_chat_template(turns, tokenize=False) == "say 7 7 then"


def test_the_resolved_config_repeats_the_run(run, workspace, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["training"]["train_iters"] == 6
    overrides = [f"training.run_dir={tmp_path}/again", f"training.export_hf={tmp_path}/hf"]
    post_train(["--config-name", run / "config.yaml", *overrides, f"{ACTOR}.save={tmp_path}/again/checkpoints/actor"])
    assert metrics(tmp_path / "again") == metrics(run)


def test_cfg_prints_the_resolved_config_and_writes_nothing(workspace, tmp_path):
    printed = post_train([*workspace.arguments("grpo", tmp_path / "run", *TWO), "--cfg"])
    (tmp_path / "printed.yaml").write_text(printed.out)
    again = post_train(["--config-name", "printed", "--config-dir", tmp_path, "--cfg"])
    assert again.out == printed.out
    assert yaml.safe_load(printed.out)["training"]["stage"] == "ray_grpo"
    assert not (tmp_path / "run").exists()


def test_check_names_what_it_checked_and_writes_nothing(workspace, tmp_path):
    outcome = post_train([*workspace.arguments("grpo", tmp_path / "run", *TWO), "--check"])
    assert all(line.startswith("ok: ") for line in outcome.out.splitlines())
    for fragment in ("actor_rollout: llama, 2 layers", "40 prompts", "rewards: fraction_right", str(tmp_path / "run")):
        assert fragment in outcome.out
    assert not (tmp_path / "run").exists()


def test_prompts_that_no_answer_can_solve_are_counted(workspace, tmp_path):
    rows = [{"prompt": "say 7", "solution": solution} for solution in ("7", " ", None, "8", "")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--input", tmp_path / "in.jsonl", "--output-prefix", tmp_path / "blank", "--prompt-type", "empty"]
    handler = ["--handler-name", "PPOAlpacaStyleInstructionHandler", "--map-keys", '{"prompt": "prompt"}']
    assert run_here(preprocess, [*where, *handler, "--tokenizer-name-or-path", workspace.hf]).status == 0
    overrides = [*TWO, f"{ACTOR}.data_path={tmp_path}/blank", "reward.functions=[{name: accuracy}]", "--check"]
    said = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides)).out
    assert "data_path: 2 of 5 prompts in" in said and "a blank 'solution'" in said and "the first is prompt 1\n" in said


def test_keys_without_effect_here_are_named_once(workspace, tmp_path):
    overrides = [*SHORT, "training.train_iters=1", "training.use_fused_rmsnorm=true", "algorithm.gamma=1.0"]
    outcome = post_train(workspace.arguments("grpo", tmp_path / "run", *overrides))
    assert outcome.out.count("use_fused_rmsnorm") == 1 and outcome.out.count("gamma") == 1


def test_sft_learns_and_evaluates(workspace, tmp_path):
    evaluation = ["training.eval_interval=10", f"training.eval_data_path={workspace.data}/sft"]
    overrides = ["training.train_iters=40", "training.global_batch_size=40", *evaluation]
    post_train(workspace.arguments("sft", tmp_path / "run", *overrides))
    lines = metrics(tmp_path / "run")
    assert {"sft/loss", "sft/grad_norm", "sft/lr"} <= lines[0].keys()
    assert lines[-1]["sft/loss"] < lines[0]["sft/loss"] / 2
    assert [line["iteration"] for line in lines if "eval/loss" in line] == [10, 20, 30, 40]
    # One batch is the whole data set, so the last loss before a step is near the evaluation after it.
    assert lines[-1]["eval/loss"] == pytest.approx(lines[-1]["sft/loss"], rel=0.2)
