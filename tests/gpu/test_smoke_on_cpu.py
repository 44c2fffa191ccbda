"""The GPU smoke test passes on the CPU, so that it works when it meets a GPU, with only what its header names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = Path(__file__).with_name("smoke.sh")
NOT_NEEDED = ("ray", "hydra", "omegaconf", "math_verify", "tensorboard")


@pytest.mark.slow
def test_the_gpu_smoke_test_passes_on_the_cpu_with_few_packages(tmp_path: Path):
    # None in sys.modules is Python's own way to make a package impossible to import.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({NOT_NEEDED}))\n")
    # The packages that are needed may lie on PYTHONPATH, as this file does; a marker shows that it was found there.
    (tmp_path / "sitecustomize.py").open("a").write("print('found on PYTHONPATH')\n")
    environment = os.environ | {"MINDLLM_PYTHON": sys.executable, "MINDLLM_DEVICE": "cpu", "PYTHONPATH": str(tmp_path)}
    command = ["bash", SMOKE, "--size", "tiny", "--allow-cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "passed"
    assert sum(line.startswith("ok ") for line in done.stdout.splitlines()) == 6
    assert done.stdout.startswith("found on PYTHONPATH\n")
