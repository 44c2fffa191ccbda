"""The console script and the three scripts of a checkout: which program they start, and what they say without it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mindllm
from mindllm import __main__ as console

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_the_three_programs(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert console.main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in ("preprocess", "convert", "posttrain"))


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]):
    assert console.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mindllm {mindllm.__version__}\n"


def test_an_unknown_command_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]):
    assert console.main(["posttrian", "--help"]) == 2
    assert capsys.readouterr().err == (
        "error: unknown command posttrian; allowed: preprocess, convert, posttrain; did you mean 'posttrain'?\n"
    )


CONVERSION = "--load-model-type hf --save-model-type mcore --load-dir configs --save-dir never_written"


@pytest.mark.parametrize("command", ["preprocess_data.py", "posttrain_gpt.py", f"convert_ckpt.py {CONVERSION}"])
def test_a_script_says_which_package_its_interpreter_lacks(command: str):
    # -S leaves site-packages out, as an interpreter without the packages does.
    done = subprocess.run([sys.executable, "-S", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sys.executable} has no package that provides ")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which mindllm is what a wheel of this checkout installs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".venv*", ".git", "runs", "build", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("mindllm-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True, capture_output=True)
    return os.environ | {"PYTHONPATH": str(folder / "site"), "PATH": f"{folder}/site/bin:{os.environ['PATH']}"}


def run_installed(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed ``mindllm`` in ``folder``."""
    return subprocess.run(["mindllm", *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_an_installed_wheel_has_every_configuration_and_template(installed: dict[str, str]):
    site = Path(installed["PYTHONPATH"])
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    assert len(shipped) > 30
    assert {path.relative_to(site / "mindllm/configs") for path in site.rglob("*.yaml")} == shipped
    assert not list(site.glob("tests*")), "a wheel installs no tests"


def test_the_installed_command_answers_by_its_own_name_from_any_folder(installed: dict[str, str], tmp_path: Path):
    shown = run_installed(installed, tmp_path, "posttrain", "--help")
    assert shown.returncode == 0 and "grpo_trainer_quickstart" in shown.stdout
    assert "mindllm posttrain --config-name" in shown.stdout and ".py" not in shown.stdout.split("example:")[1]
    printed = run_installed(installed, tmp_path, "posttrain", "--config-name", "sft_trainer_quickstart", "--cfg")
    assert printed.returncode == 0, printed.stderr
    assert "stage: sft" in printed.stdout


@pytest.mark.slow
def test_the_installed_commands_take_a_model_through_training_and_back_from_any_folder(
    installed: dict[str, str], tmp_path: Path
):
    for script, *arguments in (("make_task.py", "task"), ("make_model.py", "hf")):
        command = [sys.executable, ROOT / "examples/quickstart" / script, *arguments]
        subprocess.run(command, cwd=tmp_path, env=installed, check=True, capture_output=True)
    handler = "--handler-name AlpacaStyleInstructionHandler --tokenizer-name-or-path hf"
    sft = "--config-name sft_trainer_quickstart training.executor=inline training.run_dir=run training.load=mcore"
    for command in (
        f"preprocess --input task/sft.jsonl --output-prefix data/sft {handler}",
        "convert --load-model-type hf --save-model-type mcore --load-dir hf --save-dir mcore",
        f"posttrain {sft} training.data_path=data/sft training.train_iters=4 training.lr_warmup_iters=1",
        "convert --load-model-type mcore --save-model-type hf --load-dir run/checkpoints/actor --save-dir trained",
    ):
        done = run_installed(installed, tmp_path, *command.split())
        assert done.returncode == 0, done.stdout + done.stderr
    losses = [json.loads(line)["sft/loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert (tmp_path / "trained/model.safetensors").is_file()
