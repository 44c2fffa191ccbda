"""Every launch script under examples/ calls its door with flags and keys that exist."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mindllm.config import compose_config
from mindllm.config.catalog import config_names
from mindllm.convert.cli import build_parser as convert_parser
from mindllm.preprocess.cli import parse as parse_preprocess
from mindllm.resources import TEMPLATES, TRAINER_CONFIGS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*/*.sh") if path.parent.name != "quickstart")


def command_of(script: Path, tmp_path: Path) -> list[str]:
    """What the script would run, recorded by a stand-in for python, which passes for one with every package."""
    stand_in = tmp_path / "python"
    show = "import shlex, sys; print(shlex.join(sys.argv[1:]))"
    stand_in.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec {sys.executable} -c "{show}" "$@"\n')
    stand_in.chmod(0o755)
    environment = os.environ | {"MINDLLM_PYTHON": str(stand_in)}
    done = subprocess.run(["bash", script], env=environment, check=True, capture_output=True, text=True)
    return shlex.split(done.stdout)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_launch_script_calls_its_door_with_flags_that_exist(script: Path, tmp_path: Path):
    door, *arguments = command_of(script, tmp_path)
    if door == "posttrain_gpt.py":
        assert arguments[0] == "--config-name"
        assert script.stem == arguments[1].replace("_trainer_", "_")
        compose_config(arguments[1], arguments[2:])
    elif door == "convert_ckpt.py":
        convert_parser().parse_args(arguments)
    else:
        assert door == "preprocess_data.py"
        parse_preprocess(arguments)


REWARDS_OF_TAGS = {"format", "strict_format"}
GRPO = [script for script in SCRIPTS if script.stem.startswith("grpo_")]


@pytest.mark.parametrize("script", GRPO, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_prompts_ask_for_the_tags_that_are_rewarded(script: Path, tmp_path: Path):
    """The system prompt of the template, as it is written in the file, names each tag."""
    _, _, name, *overrides = command_of(script, tmp_path)
    if not REWARDS_OF_TAGS & {function.name for function in compose_config(name, overrides).reward.functions}:
        return
    convert = script.with_name(f"data_convert_{script.stem.removeprefix('grpo_')}_grpo.sh")
    options, _ = parse_preprocess(command_of(convert, tmp_path)[1:])
    asked = yaml.safe_load((TEMPLATES / f"{options.prompt_type}.yaml").read_text()).get("default_system", "")
    assert all(tag in asked for tag in ("<think>", "</think>", "<answer>", "</answer>"))


def test_a_shipped_configuration_without_a_launch_script_rewards_no_tags():
    scripted = {script.stem.replace("grpo_", "grpo_trainer_") for script in GRPO}
    for name in set(config_names(TRAINER_CONFIGS)) - scripted:
        reward = compose_config(name, []).reward
        assert not REWARDS_OF_TAGS & {function.name for function in (reward.functions if reward else ())}, name


@pytest.fixture
def find_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``find_python`` in an empty folder with the given environment and PATH of the system alone."""

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", f". {ROOT}/scripts/environment.sh; find_python; echo $PYTHON"]
        bare = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
        return subprocess.run(command, cwd=tmp_path, env=bare | environment, capture_output=True, text=True)

    return run


def interpreter(path: Path, status: int) -> str:
    """A stand-in for an interpreter with (status 0) or without (status 1) the packages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_launch_scripts_use_the_environment_of_the_quickstart_unless_another_is_active(find_python, tmp_path: Path):
    made = interpreter(tmp_path / ".venv/bin/python", 0)
    interpreter(tmp_path / "bin/python", 0)
    active = interpreter(tmp_path / "mine/bin/python", 0)
    assert find_python().stdout.strip() == made
    assert find_python(VIRTUAL_ENV=f"{tmp_path}/mine").stdout.strip() == active
    assert find_python(CONDA_PREFIX=f"{tmp_path}/mine").stdout.strip() == active
    assert find_python(MINDLLM_PYTHON=active).stdout.strip() == active


def test_launch_scripts_pass_over_an_interpreter_without_the_packages(find_python, tmp_path: Path):
    interpreter(tmp_path / "base/bin/python", 1)
    made = interpreter(tmp_path / ".venv/bin/python", 0)
    assert find_python(CONDA_PREFIX=f"{tmp_path}/base").stdout.strip() == made


def test_a_launch_script_says_that_no_interpreter_has_the_packages(find_python, tmp_path: Path):
    for name in ("python", "python3"):
        interpreter(tmp_path / "bin" / name, 1)
    refused = find_python(MINDLLM_PYTHON="/no/such/python")
    assert refused.returncode == 2 and refused.stderr.startswith("error: none of /no/such/python has torch")
    refused = find_python()
    assert refused.returncode == 2 and f"{tmp_path}/.venv/bin/python python python3" in refused.stderr
