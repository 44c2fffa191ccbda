"""The quickstart from its shell script: figures and files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("initial", "sft", "grpo")
PHASES = ("prepare", "sft", "grpo", "export", "evaluate", "total")

pytestmark = pytest.mark.ray


def run_quickstart(run_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``run.sh`` with the interpreter of this test."""
    command = ["bash", ROOT / "examples" / "quickstart" / "run.sh", "--run-dir", run_dir, *options]
    environment = os.environ | {"MINDLLM_PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def read_summary(run_dir: Path) -> dict[str, float]:
    return json.loads((run_dir / "summary.json").read_text("utf-8"))


@pytest.mark.slow
def test_the_fast_quickstart_walks_the_whole_road(tmp_path: Path):
    run_dir = tmp_path / "quickstart"
    done = run_quickstart(run_dir, "--fast")
    assert done.returncode == 0, done.stderr
    summary = read_summary(run_dir)
    expected = {f"accuracy_{kind}_{stage}" for kind in ("greedy", "sampled") for stage in STAGES}
    assert set(summary) == expected | {f"seconds_{phase}" for phase in PHASES}
    assert (run_dir / "grpo_hf" / "model.safetensors").is_file()
    assert (run_dir / "grpo" / "metrics.jsonl").read_text("utf-8").count("\n") == 2
    assert "held-out accuracy" in done.stdout and str(run_dir / "grpo_hf") in done.stdout

    # A second run would start over in this directory, because it is a quickstart's, and in no other.
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    refused = run_quickstart(other, "--fast")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert (other / "thesis.txt").read_text() == "precious"


@pytest.mark.long
def test_the_quickstart_learns_what_the_readme_says(tmp_path: Path):
    """With seed 0 and TP2; the other seeds and layouts take as long again, and are in the README."""
    run_dir = tmp_path / "quickstart"
    done = run_quickstart(run_dir)
    assert done.returncode == 0, done.stderr
    summary = read_summary(run_dir)
    assert summary["accuracy_sampled_sft"] >= 0.10
    assert summary["accuracy_sampled_grpo"] >= 0.75
    assert summary["accuracy_sampled_grpo"] - summary["accuracy_sampled_sft"] >= 0.30
