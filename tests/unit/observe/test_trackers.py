"""What trackers are told about a run beside its scalars."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mindllm.observe import RunLog, WandbSettings

CONFIG = {"training": {"stage": "sft", "seed": 3}, "reward": {"functions": [{"name": "accuracy", "weight": 1.0}]}}
VARIABLES = ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_ENTITY", "WANDB_DIR", "WANDB_RUN_ID")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for the wandb package; the arguments of every ``wandb.init``."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    started: list[dict[str, Any]] = []
    run = types.SimpleNamespace(log=lambda scalars, step: None, finish=lambda: None)
    fake = types.SimpleNamespace(init=lambda **settings: started.append(settings) or run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return started


def log_once(run_dir: Path, settings: WandbSettings | None = None) -> None:
    with RunLog(run_dir, ["wandb"], 1, config=CONFIG, wandb=settings) as log:
        log.log(1, {"loss": 0.5})


def names(started: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(started[key] for key in ("project", "name", "group", "entity", "dir"))


def test_wandb_gets_the_configuration_and_names_of_its_own_by_default(wandb, tmp_path):
    log_once(tmp_path / "my_run")
    assert names(wandb[0]) == ("mindllm", "my_run", None, None, str(tmp_path / "my_run"))
    assert wandb[0]["config"] == CONFIG


def test_the_environment_names_a_wandb_run_and_the_runs_own_keys_win_over_it(wandb, tmp_path, monkeypatch):
    for name, value in zip(VARIABLES, ("p", "n", "g", "e", str(tmp_path / "d"), "the-id"), strict=True):
        monkeypatch.setenv(name, value)
    log_once(tmp_path / "one")
    assert names(wandb[0]) == ("p", "n", "g", "e", str(tmp_path / "d")) and wandb[0]["id"] == "the-id"
    log_once(tmp_path / "two", WandbSettings("P", "N", "G", "E", str(tmp_path / "D")))
    assert names(wandb[1]) == ("P", "N", "G", "E", str(tmp_path / "D"))


def test_a_resumed_run_keeps_its_wandb_id_though_the_environment_has_another(wandb, tmp_path, monkeypatch):
    log_once(tmp_path)
    monkeypatch.setenv("WANDB_RUN_ID", "another")
    log_once(tmp_path)
    assert wandb[0]["id"] == wandb[1]["id"] != "another"


def test_an_id_that_a_killed_run_left_empty_is_drawn_again(wandb, tmp_path):
    (tmp_path / "wandb_run_id.txt").write_text("")
    log_once(tmp_path)
    assert wandb[0]["id"] == (tmp_path / "wandb_run_id.txt").read_text() != ""


def test_a_directory_that_wandb_cannot_have_does_not_end_the_run(wandb, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log_once(tmp_path / "run", WandbSettings(save_dir=str(tmp_path / "file" / "below")))
    assert wandb == [] and "tracker 'wandb' is off from now on" in caplog.text


def test_tensorboard_shows_the_configuration_as_text(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLog(tmp_path, ["tensorboard"], 1, config=CONFIG) as log:
        log.log(1, {"loss": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.PluginTagToContent("text").keys() == {"config"}
    (event,) = events.Tensors("config")
    assert json.loads(event.tensor_proto.string_val[0]) == CONFIG
    assert [scalar.value for scalar in events.Scalars("loss")] == [0.5]
