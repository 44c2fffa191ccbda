"""Every launch script under examples/ calls its door with flags and keys that exist."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mindllm.checkpoint.cli import build_parser as convert_parser
from mindllm.config import compose_config
from mindllm.data.cli import parse as parse_preprocess

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*/*.sh") if path.parent.name != "quickstart")


def command_of(script: Path, tmp_path: Path) -> list[str]:
    """What the script would run, recorded by a stand-in for python."""
    stand_in = tmp_path / "python"
    show = "import shlex, sys; print(shlex.join(sys.argv[1:]))"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{show}" "$@"\n')
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_launch_script_ends_no_process_of_others(script: Path):
    assert "kill" not in script.read_text("utf-8")
