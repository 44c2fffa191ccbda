"""Every path of a configuration is absolute, from where the driver runs, whoever reads it later and wherever."""

import os
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import yaml

from mindllm.config import RunConfig, build_config, compose_config, resolved_yaml
from mindllm.config.base import Section
from mindllm.config.catalog import find_config
from mindllm.convert.cli import build_parser as convert_parser
from mindllm.errors import UserError
from mindllm.preprocess.flags import build_parser as preprocess_parser

ACTOR = "actor_rollout_ref.actor_rollout"
NOT_PATHS = {
    "training": {"stage", "executor", "wandb_project", "wandb_exp_name", "wandb_group", "wandb_entity"},
    "role": {"model", "tokenizer_type", "lr_decay_style", "loss_agg_mode"},
    "function": {"name"},
}


def text_keys(section: type[Section]) -> set[str]:
    """Keys whose value is free text."""
    return {key for key, field in section.model_fields.items() if _is_text(field.annotation)}


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return any(map(_is_text, get_args(annotation)))
    return annotation is str


def every_text(config: RunConfig) -> dict[str, str]:
    """Dotted key -> value, for each key with free text that is not in ``NOT_PATHS``."""
    groups = [("training", config.training)]
    groups += [("role", role) for role in config.roles().values()]
    groups += [("function", function) for function in config.reward.functions]
    return {
        f"{number}.{key}": getattr(section, key)
        for number, (kind, section) in enumerate(groups)
        for key in text_keys(type(section)) - NOT_PATHS[kind]
    }


@pytest.fixture
def with_paths(ppo):
    """A PPO run in which every path is written, and relative."""
    ppo["training"] |= {"run_dir": "out", "export_hf": "./hf", "eval_data_path": "1.0,held/out", "eval_interval": 2}
    ppo["training"] |= {"tokenizer_name_or_path": "org/name", "trackers": ["wandb"], "wandb_save_dir": "wandb"}
    ppo["actor_rollout_ref"]["actor_rollout"]["save"] = "../saved"
    ppo["reward"] |= {"functions": [{"name": "f", "path": "a/b.py"}], "tokenizer_name_or_path": "reward/hf"}
    return ppo


def test_no_path_depends_on_where_it_is_read(with_paths, tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    config = build_config(with_paths)
    paths = every_text(config)
    assert len(paths) > 12 and all(path.startswith(f"{tmp_path}/") for path in paths.values())
    assert config.actor.save == f"{tmp_path}/saved"
    assert config.training.eval_data_path == f"{tmp_path}/driver/held/out"
    assert config.actor.tokenizer_name_or_path == f"{tmp_path}/driver/org/name"
    assert config.reward.functions[0].path == f"{tmp_path}/driver/a/b.py"
    monkeypatch.chdir("/")
    assert every_text(build_config(yaml.safe_load(resolved_yaml(config)))) == paths


def test_home_and_environment_are_expanded_and_links_are_kept(sft, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    sft["training"] |= {"load": "~/link/base", "run_dir": "$SCRATCH/run", "export_hf": "${SCRATCH}_hf"}
    config = build_config(sft)
    assert config.actor.load == f"{tmp_path}/link/base"
    assert (config.training.run_dir, config.training.export_hf) == ("/scratch/me/run", "/scratch/me_hf")
    assert config.actor.save == "/scratch/me/run/checkpoints/actor"


def test_a_file_whose_name_holds_such_characters_is_itself(sft, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("~odd", "price$5"):
        (tmp_path / name).mkdir()
        sft["training"]["load"] = name
        assert build_config(sft).actor.load == f"{tmp_path}/{name}"


@pytest.mark.parametrize(
    ("written", "fragment"),
    [
        ("$NO_SUCH_VARIABLE/x", "training.load: '$NO_SUCH_VARIABLE/x' names the environment variable NO_SUCH_VARIABLE"),
        ("~nobody_of_this_name/x", "training.load: '~nobody_of_this_name/x' names the home directory of a user"),
        ("", "training.load is empty"),
    ],
)
def test_what_cannot_be_expanded_is_refused_under_its_key(sft, written, fragment):
    sft["training"]["load"] = written
    with pytest.raises(UserError) as refused:
        build_config(sft)
    assert str(refused.value).startswith(fragment)


@pytest.mark.parametrize("written", ["1.0,data/x", "1.0 data/x", [1.0, "data/x"], "data/x", ["data/x"]])
def test_one_prefix_with_its_weight_is_that_prefix(sft, written):
    sft["training"]["data_path"] = written
    assert build_config(sft).actor.data_path == os.path.abspath("data/x")


@pytest.mark.parametrize("written", ["0.3 a 0.7 b", "0.3,a,0.7,b", [0.3, "a", 0.7, "b"], ["a", "b"]])
@pytest.mark.parametrize("key", ["data_path", "eval_data_path"])
def test_a_blend_is_refused_under_its_key(sft, written, key):
    sft["training"] |= {"eval_interval": 1, "eval_data_path": "held", key: written}
    with pytest.raises(UserError, match=rf"training\.{key}: .* a blend is not available"):
        build_config(sft)


def test_a_save_directory_that_load_reads_is_found_however_both_are_written(sft):
    sft["training"] |= {"load": "./ckpt/../base", "save": f"{Path.cwd()}/base/"}
    with pytest.raises(UserError, match="the directory that load reads"):
        build_config(sft)


def test_an_interpolated_path_is_expanded_once_it_is_whole(write, config_dir, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    text = (config_dir / "small_sft.yaml").read_text() + "  run_dir: ~/r\n  export_hf: ${training.run_dir}/hf\n"
    assert compose_config(write(text), [], str(config_dir)).training.export_hf == "/home/me/r/hf"


def test_the_flags_of_the_other_programs_expand_too(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    kinds = ["--load-model-type=hf", "--save-model-type=mcore"]
    found = convert_parser().parse_args([*kinds, "--load-dir=~/a", "--save-dir=$HOME/b", "--lora-load=~/c"])
    assert (found.load_dir, found.save_dir, str(found.lora_load)) == ("/home/me/a", "/home/me/b", "/home/me/c")
    flags = ["--input=~/a.jsonl,~/b.jsonl", "--output-prefix=~/out/x", "--handler-name=H", "--prompt-type=~/t.yaml"]
    found = preprocess_parser().parse_args([*flags, "--tokenizer-name-or-path=~/hf", "--handler-file=~/h.py"])
    assert found.input == ["/home/me/a.jsonl,/home/me/b.jsonl"]
    assert (found.prompt_type, found.handler_file) == ("/home/me/t.yaml", "/home/me/h.py")
    assert (str(found.output_prefix), str(found.tokenizer_name_or_path)) == ("/home/me/out/x", "/home/me/hf")


def test_a_flag_that_cannot_be_expanded_is_refused_by_name():
    with pytest.raises(UserError, match="--load-dir: '~nobody_of_this_name/x' names the home directory"):
        convert_parser().parse_args(["--load-dir", "~nobody_of_this_name/x"])


@pytest.fixture
def placed(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with `here.yaml`, `other.yml`, `sub/below.yaml` and `small_sft.yaml` in a folder."""
    (config_dir / "here.yaml").write_text("")
    (config_dir / "other.yml").write_text("")
    (config_dir / "sub").mkdir()
    for name in ("below", "grpo_trainer_quickstart"):
        (config_dir / "sub" / f"{name}.yaml").write_text("")
    monkeypatch.chdir(config_dir)
    return config_dir


@pytest.mark.parametrize(
    ("name", "directory", "found"),
    [
        ("here", None, "here.yaml"),
        ("here.yaml", None, "here.yaml"),
        ("{root}/here", None, "here.yaml"),
        ("{root}/here.yaml", None, "here.yaml"),
        ("./sub/below", None, "sub/below.yaml"),
        ("sub/below.yaml", None, "sub/below.yaml"),
        ("below", "sub", "sub/below.yaml"),
        ("below.yaml", "{root}/sub", "sub/below.yaml"),
        ("sub/below", ".", "sub/below.yaml"),
        ("sub/below", "sub", "sub/below.yaml"),
        ("{root}/sub/below", "sub", "sub/below.yaml"),
        ("{root}/here.yaml", "sub", "here.yaml"),
        ("sub/grpo_trainer_quickstart", None, "sub/grpo_trainer_quickstart.yaml"),
        ("grpo_trainer_quickstart", "sub", "sub/grpo_trainer_quickstart.yaml"),
    ],
)
def test_a_configuration_is_found_by_name_and_by_path(placed, name, directory, found):
    directory = directory and directory.format(root=placed)
    assert find_config(name.format(root=placed), directory) == placed / found


@pytest.mark.parametrize(
    ("name", "directory", "fragment"),
    [
        ("{root}/heer", None, "--config-name {root}/heer: no such file, with or without .yaml; did you mean here?"),
        ("{root}/heer.yaml", None, "--config-name {root}/heer.yaml: no such file; did you mean here?"),
        ("sub/belwo", ".", "--config-name sub/belwo: no such file, with or without .yaml; did you mean below?"),
        ("other.yml", None, "--config-name other.yml: the name of a configuration file ends in .yaml; rename it"),
        ("sub", None, "--config-name sub is a directory; name a file in it: below, grpo_trainer_quickstart"),
        ("here", "sub", "config 'here' is not in sub; available: below, grpo_trainer_quickstart"),
    ],
)
def test_a_configuration_that_is_not_there_is_refused_by_what_was_written(placed, name, directory, fragment):
    with pytest.raises(UserError) as refused:
        find_config(name.format(root=placed), directory)
    assert str(refused.value) == fragment.format(root=placed)


def test_model_files_are_found_beside_the_configuration_and_in_the_directory(config_dir, monkeypatch):
    (config_dir / "sub").mkdir()
    (config_dir / "small_grpo.yaml").rename(config_dir / "sub" / "moved.yaml")
    config = compose_config("sub/moved", [f"{ACTOR}.model=tiny"], str(config_dir))
    assert config.actor.model_keys["num_layers"] == 4
