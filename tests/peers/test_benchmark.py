"""The benchmark against TRL's GRPOTrainer runs, and both sides do the same work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]


def test_a_step_of_ours_and_of_trl_can_be_compared():
    pytest.importorskip("trl")
    command = [sys.executable, "benchmarks/grpo_vs_trl.py", "--rounds", "1", "--steps", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    # It ends with an error when the sides differ in tokens or in the entropy of the untrained policy.
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["name"] == "grpo_vs_trl" and result["ratio"] == pytest.approx(result["other"] / result["ours"], 1e-2)
