"""The PPO quickstart from its shell script: figures and files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHASES = ("prepare", "sft", "orm", "ppo", "export", "evaluate", "total")

pytestmark = pytest.mark.ray


def run_quickstart(run_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``ppo.sh`` with the interpreter of this test."""
    command = ["bash", ROOT / "examples" / "quickstart" / "ppo.sh", "--run-dir", run_dir, *options]
    environment = os.environ | {"MINDLLM_PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "ppo" / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_the_fast_ppo_quickstart_walks_the_whole_road(tmp_path: Path):
    run_dir = tmp_path / "quickstart"
    done = run_quickstart(run_dir, "--fast")
    assert done.returncode == 0, done.stderr
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    figures = {f"{measure}_{stage}" for measure in ("score", "positive_share") for stage in ("sft", "ppo")}
    assert set(summary) == {"pair_accuracy_orm", *figures, *(f"seconds_{phase}" for phase in PHASES)}
    assert all((run_dir / name / "model.safetensors").is_file() for name in ("ppo_hf", "orm_hf"))
    assert "reward-model score" in done.stdout and str(run_dir / "ppo_hf") in done.stdout

    first, second = read_metrics(run_dir)
    assert "actor/pg_loss" not in first and "critic/vf_loss" in first  # the critic warms up alone
    assert "actor/pg_loss" in second
    # The rule function has weight 0: it is shown, and the score is the reward model's alone.
    assert first["critic/score/mean"] == pytest.approx(first["reward/model/mean"])
    assert 0 <= first["reward/positive_share/mean"] <= 1


@pytest.mark.long
def test_reward_model_score_and_true_share_rise_as_the_document_says(tmp_path: Path):
    run_dir = tmp_path / "quickstart"
    done = run_quickstart(run_dir, "--seed", "0")
    assert done.returncode == 0, done.stderr
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    assert summary["pair_accuracy_orm"] >= 0.95
    assert summary["score_ppo"] - summary["score_sft"] >= 2.0
    assert 0.3 <= summary["positive_share_sft"] <= 0.5
    assert summary["positive_share_ppo"] >= 0.8
