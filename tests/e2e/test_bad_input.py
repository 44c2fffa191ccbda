"""Bad input through the three commands: one sentence that names the culprit, before anything starts or is written."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mindllm import posttrain
from mindllm.convert.cli import main as convert
from mindllm.preprocess.cli import main as preprocess
from tests.e2e import tiny
from tests.e2e.runs import ACTOR, Outcome, Workspace, run_here, run_process

Arguments = list[Any]
Case = Callable[[Workspace, Path], Arguments]


def files_under(root: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def check_refusal(outcome: Outcome, fragments: list[str]) -> None:
    """One sentence with all fragments on stderr, nothing else."""
    assert outcome.status == 2
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err + outcome.out
    for fragment in fragments:
        assert re.search(fragment, outcome.err), f"{fragment!r} is not in {outcome.err!r}"


def no_ray() -> bool:
    return "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Call it when the case is set up; at the end the directory must be as it was."""
    before: dict[str, Any] = {}
    yield lambda: before.update(files=files_under(tmp_path))
    assert files_under(tmp_path) == before["files"]


def grpo(*overrides: str) -> Case:
    """A GRPO run with overrides; ``{tmp}`` and ``{root}`` stand for the test's directory and the workspace."""
    return lambda workspace, tmp: workspace.arguments(
        "grpo", tmp / "run", *(text.format(tmp=tmp, root=workspace.root) for text in overrides)
    )


def damaged(workspace: Workspace, tmp: Path, what: str, damage: Callable[[Path], Any]) -> Path:
    """A copy of the workspace's ``what`` in ``tmp`` after ``damage``."""
    copy = tmp / what
    shutil.copytree(getattr(workspace, what), copy)
    damage(copy)
    return copy


def truncate(path: Path, keep: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def with_data(damage: Callable[[Path], Any]) -> Case:
    def case(workspace: Workspace, tmp: Path) -> Arguments:
        data = damaged(workspace, tmp, "data", damage)
        return workspace.arguments("grpo", tmp / "run", f"{ACTOR}.data_path={data}/train")

    return case


def with_checkpoint(damage: Callable[[Path], Any]) -> Case:
    """``damage`` gets the directory of the checkpoint's iteration."""

    def case(workspace: Workspace, tmp: Path) -> Arguments:
        mcore = damaged(workspace, tmp, "mcore", lambda copy: damage(copy / "iter_0000001"))
        return workspace.arguments("grpo", tmp / "run", f"training.load={mcore}")

    return case


def other_architecture(iteration: Path) -> None:
    config = json.loads((iteration / "hf/config.json").read_text())
    (iteration / "hf/config.json").write_text(json.dumps({**config, "intermediate_size": 128}))


def data_of_another_tokenizer(workspace: Workspace, tmp: Path) -> Arguments:
    """As many tokens, other numbers."""
    tiny.write_tokenizer(tmp / "tokenizer", [tiny.VOCABULARY[0], *tiny.VOCABULARY[:0:-1]])
    where = ["--input", workspace.task / "train.jsonl", "--output-prefix", tmp / "data/train"]
    how = ["--handler-name", "PPOAlpacaStyleInstructionHandler", "--map-keys", '{"prompt": "prompt"}']
    text = ["--tokenizer-name-or-path", tmp / "tokenizer", "--prompt-type", "empty"]
    assert run_here(preprocess, [*where, *how, *text]).status == 0
    return workspace.arguments("grpo", tmp / "run", f"{ACTOR}.data_path={tmp}/data/train")


def foreign_tokenizer(workspace: Workspace, tmp: Path) -> Arguments:
    tiny.write_tokenizer(tmp / "tokenizer", [*tiny.VOCABULARY, *"abcdefgh"])
    return workspace.arguments("grpo", tmp / "run", f"{ACTOR}.tokenizer_name_or_path={tmp}/tokenizer")


def file_where_a_run_goes(workspace: Workspace, tmp: Path) -> Arguments:
    (tmp / "run").write_text("precious")
    return workspace.arguments("grpo", tmp / "run")


def export_that_exists(workspace: Workspace, tmp: Path) -> Arguments:
    (tmp / "export").mkdir()
    return workspace.arguments("grpo", tmp / "run", f"training.export_hf={tmp}/export")


def model_file_of_another(workspace: Workspace, tmp: Path) -> Arguments:
    config = f"defaults:\n  - model: [other]\n{(workspace.configs / 'grpo.yaml').read_text()}"
    config = config.replace("actor_rollout:\n", "actor_rollout:\n    model: other\n")
    (tmp / "configs/model").mkdir(parents=True)
    (tmp / "configs/grpo.yaml").write_text(config)
    (tmp / "configs/model/other.yaml").write_text("other:\n  hidden_size: 128\n")
    return ["--config-name", "grpo", "--config-dir", tmp / "configs", f"training.run_dir={tmp}/run"]


def not_yaml(workspace: Workspace, tmp: Path) -> Arguments:
    (tmp / "broken.yaml").write_text("training: [1, 2\nreward: }")
    return ["--config-name", "broken", "--config-dir", tmp]


def reward_with(source: str) -> Case:
    def case(workspace: Workspace, tmp: Path) -> Arguments:
        (tmp / "mine.py").write_text(source)
        function = f"{{name: mine, path: {tmp}/mine.py}}"
        return workspace.arguments("grpo", tmp / "run", f"reward.functions=[{function}]")

    return case


BAD_RUNS: dict[str, tuple[Case, list[str]]] = {
    "unknown config": (lambda workspace, tmp: workspace.arguments("gpro", tmp / "run"), ["gpro", "grpo"]),
    "config that is not YAML": (not_yaml, ["broken.yaml"]),
    "unknown flag": (lambda workspace, tmp: [*workspace.arguments("grpo", tmp / "run"), "--dry-run"], ["--dry-run"]),
    "override without =": (grpo("training.seed"), ["training.seed", "key=value"]),
    "unknown key": (grpo("training.train_iter=3"), ["train_iter", "did you mean 'train_iters'"]),
    "NaN learning rate": (grpo("training.lr=nan"), ["lr"]),
    "learning rate in words": (grpo("training.lr=fast"), ["lr", "fast"]),
    "unknown stage": (grpo("training.stage=grppo"), ["training.stage", "grppo"]),
    "greedy groups": (grpo("training.stage=ray_ppo"), ["n_samples_per_prompt", "do_sample", "greedy"]),
    "unknown reward": (grpo("reward.functions=acuracy"), ["acuracy", "did you mean 'accuracy'"]),
    "reward file missing": (grpo("reward.functions=[{{name: f, path: {tmp}/none.py}}]"), ["none.py"]),
    "reward function missing": (reward_with("def other(completions): ..."), ["mine"]),
    "reward file with a syntax error": (reward_with("def mine(completions:\n"), ["mine.py"]),
    "reward column missing": (reward_with("def mine(completions, digits): ..."), ["digits", "did you mean 'digit'"]),
    "unknown reward argument": (
        grpo("reward.functions=[{{name: fraction_right, path: {root}/task/rewards.py, args: {{n: 1}}}}]"),
        ["fraction_right", "'n'"],
    ),
    "TP not dividing the heads": (
        grpo("training.executor=ray", f"{ACTOR}.tensor_model_parallel_size=3"),
        ["tensor_model_parallel_size", "3", "1, 2"],
    ),
    "PP not dividing the layers": (
        grpo("training.executor=ray", f"{ACTOR}.pipeline_model_parallel_size=3"),
        ["pipeline_model_parallel_size", "3", "num_layers 2"],
    ),
    "too few ranks": (
        grpo("training.executor=ray", f"{ACTOR}.tensor_model_parallel_size=2", "resource_pool.actor_rollout=1"),
        ["resource_pool.actor_rollout", "1 processes"],
    ),
    "two ranks inline": (grpo(f"{ACTOR}.tensor_model_parallel_size=2"), ["inline"]),
    "one sample per prompt": (
        grpo(f"{ACTOR}.n_samples_per_prompt=1", f"{ACTOR}.ppo_mini_batch_size=32"),
        ["n_samples_per_prompt is 1"],
    ),
    "mini-batch that does not divide": (grpo(f"{ACTOR}.ppo_mini_batch_size=100"), ["ppo_mini_batch_size", "100"]),
    "KL loss without a weight": (grpo("algorithm.use_kl_loss=true"), ["kl_loss_coef"]),
    "evaluation without data": (grpo("training.eval_interval=2"), ["eval_data_path"]),
    "data missing": (grpo(f"{ACTOR}.data_path={{tmp}}/none"), ["none"]),
    "SFT data for GRPO": (grpo(f"{ACTOR}.data_path={{root}}/data/sft"), ["data/sft"]),
    "corrupt .idx": (with_data(lambda data: truncate(data / "train_input_ids_document.idx")), ["train_input_ids.*idx"]),
    "truncated .bin": (with_data(lambda data: truncate(data / "train_input_ids_document.bin")), ["train_input_ids"]),
    "corrupt sidecar": (with_data(lambda data: truncate(data / "train_columns.parquet")), ["train_columns.parquet"]),
    "broken manifest": (with_data(lambda data: truncate(data / "train_manifest.json")), ["train_manifest.json"]),
    "prompts longer than the limit": (grpo(f"{ACTOR}.max_prompt_length=3"), ["data_path", "max_prompt_length 3"]),
    "longer than the window": (grpo("training.seq_length=64"), ["seq_length", "64", "32"]),
    "checkpoint missing": (grpo("training.load={tmp}/none"), ["none"]),
    "HF directory as checkpoint": (grpo("training.load={root}/hf"), ["hf", "convert_ckpt.py"]),
    "truncated .distcp": (with_checkpoint(lambda it: truncate(it / "__0_0.distcp")), ["__0_0.distcp", "truncated"]),
    ".distcp missing": (with_checkpoint(lambda it: (it / "__0_0.distcp").unlink()), ["__0_0.distcp", "missing"]),
    "corrupt .metadata": (with_checkpoint(lambda it: truncate(it / ".metadata")), ["metadata"]),
    "tensors of another architecture": (with_checkpoint(other_architecture), ["linear_fc", "shape"]),
    "model file of another architecture": (model_file_of_another, ["hidden_size", "128", "64"]),
    "data made with another tokenizer": (
        data_of_another_tokenizer,
        ["data_path", "made with the tokenizer", "preprocess with the model's tokenizer"],
    ),
    "no such load": (grpo(f"{ACTOR}.load=/none"), ["actor_rollout.load: /none is not a checkpoint directory"]),
    "run directory nobody can write to": (grpo("training.run_dir=/proc/x"), ["training.run_dir: /proc is not writ"]),
    "tokenizer of another vocabulary": (foreign_tokenizer, ["tokenizer_name_or_path", "28", "20"]),
    "end token beyond the vocabulary": (grpo(f"{ACTOR}.eos_token_ids=[99]"), ["eos_token_ids", "99"]),
    "run directory that is a file": (file_where_a_run_goes, ["run_dir", "is a file"]),
    "export that exists": (export_that_exists, ["export_hf", "exists"]),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_run_that_cannot_work_is_refused_in_one_sentence(name, workspace, tmp_path, unchanged):
    case, fragments = BAD_RUNS[name]
    arguments = case(workspace, tmp_path)
    unchanged()
    check_refusal(run_here(posttrain.main, arguments), fragments)
    assert no_ray()


def preprocessing(workspace: Workspace, tmp: Path, **changes: Any) -> Arguments:
    flags = {
        "--input": workspace.task / "train.jsonl",
        "--output-prefix": tmp / "train",
        "--handler-name": "PPOAlpacaStyleInstructionHandler",
        "--map-keys": '{"prompt": "prompt"}',
        "--tokenizer-name-or-path": workspace.hf,
        "--prompt-type": "empty",
    }
    flags |= {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [item for flag, value in flags.items() for item in (flag, value)]


def flags(**changes: Any) -> Case:
    return lambda workspace, tmp: preprocessing(workspace, tmp, **changes)


def broken_line(workspace: Workspace, tmp: Path) -> Arguments:
    (tmp / "rows.jsonl").write_text('{"prompt": "say 1"}\n{"prompt": "say\n')
    return preprocessing(workspace, tmp, input=tmp / "rows.jsonl")


def truncated_parquet(workspace: Workspace, tmp: Path) -> Arguments:
    shutil.copy(workspace.data / "train_columns.parquet", tmp / "rows.parquet")
    truncate(tmp / "rows.parquet")
    return preprocessing(workspace, tmp, input=tmp / "rows.parquet")


BAD_DATA: dict[str, tuple[Case, list[str]]] = {
    "input missing": (flags(input="/none/rows.jsonl"), ["/none/rows.jsonl"]),
    "wrong column": (flags(map_keys='{"prompt": "promt"}'), ["promt", "prompt"]),
    "map-keys that is not JSON": (flags(map_keys="prompt=prompt"), ["map-keys", "JSON"]),
    "unknown handler": (flags(handler_name="PPOAlpacaStyleHandler"), ["PPOAlpacaStyleHandler", "did you mean"]),
    "unknown template": (flags(prompt_type="chatlm"), ["chatlm", "chatml"]),
    "template the tokenizer does not know": (flags(prompt_type="chatml"), ["chatml", "im_end"]),
    "no tokenizer": (flags(tokenizer_name_or_path="/none"), ["/none"]),
    "broken line": (broken_line, ["rows.jsonl", "2"]),
    "truncated parquet": (truncated_parquet, ["rows.parquet"]),
    "unknown flag": (flags(seqlength=3), ["--seqlength", "did you mean"]),
    "prompts too long": (flags(seq_length=3, prompt_overlong="error"), ["3"]),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_cannot_be_used_is_refused_in_one_sentence(name, workspace, tmp_path, unchanged):
    case, fragments = BAD_DATA[name]
    arguments = case(workspace, tmp_path)
    unchanged()
    check_refusal(run_here(preprocess, arguments), fragments)


def conversion(workspace: Workspace, source: Path, target: Path, *more: str, to: str = "mcore") -> Arguments:
    kinds = ["--load-model-type", "hf" if to == "mcore" else "mcore", "--save-model-type", to]
    return [*kinds, "--load-dir", source, "--save-dir", target, *more]


def from_damaged_hf(damage: Callable[[Path], Any]) -> Case:
    return lambda workspace, tmp: conversion(workspace, damaged(workspace, tmp, "hf", damage), tmp / "out")


def unknown_family(hf: Path) -> None:
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps({**config, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))


def from_truncated_mcore(workspace: Workspace, tmp: Path) -> Arguments:
    mcore = damaged(workspace, tmp, "mcore", lambda copy: truncate(copy / "iter_0000001/__0_0.distcp"))
    return conversion(workspace, mcore, tmp / "out", to="hf")


def onto_a_directory(workspace: Workspace, tmp: Path) -> Arguments:
    (tmp / "out").mkdir()
    (tmp / "out/thesis.txt").write_text("precious")
    return conversion(workspace, workspace.hf, tmp / "out")


BAD_MODELS: dict[str, tuple[Case, list[str]]] = {
    "model missing": (lambda workspace, tmp: conversion(workspace, tmp / "none", tmp / "out"), ["none"]),
    "truncated safetensors": (from_damaged_hf(lambda hf: truncate(hf / "model.safetensors")), ["model.safetensors"]),
    "safetensors missing": (from_damaged_hf(lambda hf: (hf / "model.safetensors").unlink()), ["safetensors"]),
    "unknown family": (from_damaged_hf(unknown_family), ["gpt2"]),
    "another family than expected": (
        lambda workspace, tmp: conversion(workspace, workspace.hf, tmp / "out", "--model-type-hf", "qwen2"),
        ["qwen2", "llama"],
    ),
    "TP not dividing the heads": (
        lambda workspace, tmp: conversion(workspace, workspace.hf, tmp / "out", "--target-tensor-parallel-size", "3"),
        ["3"],
    ),
    "HF directory as mcore": (
        lambda workspace, tmp: conversion(workspace, workspace.hf, tmp / "out", to="hf"),
        ["hf", "latest_checkpointed_iteration"],
    ),
    "iteration missing": (
        lambda workspace, tmp: conversion(workspace, workspace.mcore, tmp / "out", "--iteration", "7", to="hf"),
        ["iteration 7"],
    ),
    "truncated .distcp": (from_truncated_mcore, ["__0_0.distcp", "truncated"]),
    "target that exists": (onto_a_directory, ["out"]),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_model_that_cannot_be_converted_is_refused_in_one_sentence(name, workspace, tmp_path, unchanged):
    case, fragments = BAD_MODELS[name]
    arguments = case(workspace, tmp_path)
    unchanged()
    check_refusal(run_here(convert, arguments), fragments)


def test_the_commands_themselves_end_with_the_sentence_and_a_status(workspace, tmp_path, unchanged):
    unchanged()
    ray = ["training.executor=ray", f"{ACTOR}.tensor_model_parallel_size=3"]
    run = run_process(workspace.arguments("grpo", tmp_path / "run", *ray), status=2)
    check_refusal(run, ["tensor_model_parallel_size"])
    data = run_process(preprocessing(workspace, tmp_path, input="/none"), status=2, script="preprocess_data.py")
    check_refusal(data, ["/none"])
    model = conversion(workspace, tmp_path / "none", tmp_path / "out")
    check_refusal(run_process(model, status=2, script="convert_ckpt.py"), ["none"])
