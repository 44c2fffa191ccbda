"""The training door: fast help, one sentence per mistake, exit status 2."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from mindllm import posttrain
from mindllm.errors import UserError, WorkerError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def door():
    return posttrain


@pytest.fixture
def rooms(monkeypatch):
    """Stand-ins for the rooms behind the door, which record what was called."""
    calls = []
    preflight = SimpleNamespace(check=lambda config: calls.append("check") or ["data", "tokenizer"])
    stages = SimpleNamespace(run=lambda config: calls.append("run"), check_resume=lambda config: [])
    monkeypatch.setitem(sys.modules, "mindllm.preflight", preflight)
    monkeypatch.setitem(sys.modules, "mindllm.stages", stages)
    import mindllm

    monkeypatch.setattr(mindllm, "preflight", preflight, raising=False)
    monkeypatch.setattr(mindllm, "stages", stages, raising=False)
    return SimpleNamespace(calls=calls, preflight=preflight, stages=stages)


def test_help_lists_stages_configs_and_keys():
    shown = subprocess.run([sys.executable, "posttrain_gpt.py", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0
    for word in ("ray_grpo", "sft", "grpo_trainer_quickstart", "training.train_iters", "--check", "--cfg"):
        assert word in shown.stdout


def test_help_imports_neither_torch_nor_ray_nor_hydra():
    code = (
        "import sys\nfrom mindllm.posttrain import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'ray', 'megatron', 'transformers', 'hydra')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0


def test_cfg_prints_the_resolved_configuration_and_launches_nothing(door, rooms, capsys):
    assert door.main(["--config-name", "grpo_trainer_quickstart", "--cfg", "training.seed=7"]) == 0
    assert "seed: 7" in capsys.readouterr().out and rooms.calls == []


def test_check_runs_the_checks_and_launches_nothing(door, rooms, capsys):
    assert door.main(["training.seed=7", "--check", "--config-name", "grpo_trainer_quickstart"]) == 0
    assert rooms.calls == ["check"] and capsys.readouterr().out == "ok: data\nok: tokenizer\n"


def test_keys_without_effect_are_named_before_the_run(door, rooms, capsys):
    arguments = ["--config-name", "grpo_trainer_quickstart", "training.finetune=true"]
    notice = "note: training.finetune: `load` gives weights only"
    assert door.main([*arguments, "--cfg"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(notice) and "finetune" not in captured.out
    assert yaml.safe_load(captured.out)["training"]["stage"] == "ray_grpo"
    assert door.main([*arguments, "--check"]) == 0
    assert capsys.readouterr().out.startswith(notice)


def test_a_check_that_fails_has_named_them_too(door, rooms, capsys):
    def refuse(config):
        raise UserError("no data")

    rooms.preflight.check = refuse
    assert door.main(["--config-name", "grpo_trainer_quickstart", "training.finetune=true", "--check"]) == 2
    assert "note: training.finetune" in capsys.readouterr().out


def test_a_run_is_checked_first(door, rooms):
    assert door.main(["--config-name", "sft_trainer_quickstart"]) == 0
    assert rooms.calls == ["check", "run"]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--config-name", "gone"], "config 'gone' is not in"),
        (["--confg-name", "gone"], "unknown argument --confg-name; --help lists all; did you mean '--config-name'"),
        (["--config-name", "sft_trainer_quickstart", "training.sed=1"], "did you mean 'seed'"),
        ([], "--config-name"),
        (
            ["--config-name", "sft_trainer_quickstart", "--chekc"],
            "unknown argument --chekc; --help lists all; did you mean '--check'?",
        ),
        (["--config-name", "sft_trainer_quickstart", "--cfg", "--check"], "not allowed with"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr_and_status_2(door, rooms, capsys, arguments, fragment):
    assert door.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and fragment in captured.err and captured.out == ""
    assert "Traceback" not in captured.err and rooms.calls == []


def test_a_mistake_found_by_the_checks_stops_the_run(door, rooms, capsys):
    def refuse(config):
        raise UserError("first\nsecond")

    rooms.preflight.check = refuse
    assert door.main(["--config-name", "sft_trainer_quickstart"]) == 2
    assert capsys.readouterr().err == "error: first\nerror: second\n" and rooms.calls == []


def test_a_failed_worker_is_status_1_with_its_own_report(door, rooms, capsys):
    def fail(config):
        raise WorkerError("actor_rollout rank 1: ZeroDivisionError")

    rooms.stages.run = fail
    assert door.main(["--config-name", "sft_trainer_quickstart"]) == 1
    assert capsys.readouterr().err == "error: actor_rollout rank 1: ZeroDivisionError\n"


def test_an_interrupt_is_status_130(door, rooms):
    def interrupt(config):
        raise KeyboardInterrupt

    rooms.stages.run = interrupt
    assert door.main(["--config-name", "sft_trainer_quickstart"]) == 130
