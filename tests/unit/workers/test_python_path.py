"""What the driver imports from its PYTHONPATH, ranks and reward processes import from the same place."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mindllm.workers.ray_ranks import REPOSITORY, python_path


@pytest.mark.parametrize(
    ("given", "search_path", "expected"),
    [
        (None, [REPOSITORY, "/python/lib"], [REPOSITORY]),
        ("/own", [REPOSITORY, "/own", "/python/lib"], [REPOSITORY, "/own"]),  # python posttrain_gpt.py
        ("/own:/megatron", ["/bin", "/own", "/megatron", REPOSITORY], ["/own", "/megatron", REPOSITORY]),  # installed
        (f"/own:{REPOSITORY}", ["/bin", "/own", REPOSITORY], ["/own", REPOSITORY]),
        ("/own", ["/python/lib", "/own"], ["/own", REPOSITORY]),  # installed from where it is edited
    ],
)
def test_the_order_of_the_driver_is_kept(monkeypatch, given, search_path, expected):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONPATH", given)
    monkeypatch.setattr(sys, "path", list(map(str, search_path)))
    assert python_path() == ":".join(map(str, expected))


def test_relative_folders_are_those_of_the_driver(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "own")
    assert str(tmp_path.resolve() / "own") in python_path().split(":")


DRIVER = """
import sys
from types import SimpleNamespace

import ray

import own_module
from mindllm.rewards import RewardItem, RewardRunner
from mindllm.workers.ray_ranks import RayCluster


@ray.remote(num_cpus=0.01)
class Rank:
    def place(self):
        import own_module

        return own_module.__file__


cluster = RayCluster()
try:
    place = ray.get(Rank.remote().place.remote())
finally:
    cluster.close()
assert place == own_module.__file__, place
reward = SimpleNamespace(name="length", path=sys.argv[1], weight=1.0, args={})
with RewardRunner([reward], "zero", timeout_s=1.0, num_workers=1) as runner:
    result = runner.score([RewardItem(n, "p", text, {}) for n, text in enumerate(["ab", "hang", "abc"])])
assert (result.total, result.timeouts) == ([2.0, 0.0, 3.0], 1), result
"""

REWARD = """
import time

from own_module import length_of


def length(completions):
    if completions[0] == "hang":
        time.sleep(1000)
    return [length_of(completions[0])]
"""


@pytest.mark.ray
@pytest.mark.slow
def test_ranks_and_replaced_reward_processes_import_what_the_driver_imports(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "own_module.py").write_text("length_of = len\n")
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "driver.py").write_text(textwrap.dedent(DRIVER))
    environment = os.environ | {"PYTHONPATH": f"{own}:{REPOSITORY}"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, tmp_path / "driver.py", tmp_path / "rewards.py"],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
