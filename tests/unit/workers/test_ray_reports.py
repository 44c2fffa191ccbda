"""How the failures of ranks become one report; no Ray is started."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError, RayTaskError

from mindllm.errors import UserError
from mindllm.workers.ray_ranks import RayCluster, RayRanks, told_by_ranks


@pytest.fixture
def ranks(tmp_path: Path) -> RayRanks:
    """Three ranks as they are after their start, without processes."""
    made = RayRanks.__new__(RayRanks)
    made.name, made._log_dir, made._pids = "actor_rollout", tmp_path, [11, 12, 13]
    return made


def task_error(error: Exception, traceback: str) -> Any:
    text = f"Traceback (most recent call last):\n{traceback}{type(error).__name__}: {error}\n"
    return RayTaskError(
        "call", text, error, proctitle="ray::RankProcess.call", pid=1, ip="127.0.0.1"
    ).as_instanceof_cause()


def test_a_dead_rank_explains_the_exceptions_of_the_others(ranks, tmp_path):
    (tmp_path / "actor_rollout_rank2.log").write_text("\n".join(f"line {i}" for i in range(50)))
    lost = task_error(RuntimeError("Connection closed by peer"), "")
    report = ranks._report({0: lost, 2: RayActorError()})
    assert report.startswith("actor_rollout rank 2 (pid 13) was ended by signal 9 (SIGKILL")
    assert "line 49" in report and "line 30" in report and "line 29" not in report


@pytest.mark.parametrize(
    ("mark", "signal"),
    [
        ("Fatal Python error: Segmentation fault", "11"),
        ("Fatal Python error: Aborted", "6"),
        ("Fatal Python error: Bus error", "7"),
        ("Terminated by SIGTERM", "15"),
    ],
)
def test_the_log_of_a_dead_rank_tells_its_signal(ranks, tmp_path, mark, signal):
    (tmp_path / "actor_rollout_rank0.log").write_text(f"working\n{mark}\n")
    assert f"signal {signal} " in ranks._report({0: RayActorError()})


def test_a_rank_that_died_before_it_wrote_is_reported_too(ranks):
    ranks._pids = []
    assert "actor_rollout rank 1 (pid unknown)" in ranks._report({1: RayActorError()})


def test_an_exception_is_shown_with_its_own_traceback_before_the_lost_connections_it_caused(ranks):
    lost = task_error(RuntimeError("Connection closed by peer"), '  File "gloo.py", line 1, in wait\n')
    cause = task_error(LookupError("the cause"), '  File "worker.py", line 7, in update\n')
    report = ranks._report({0: lost, 1: cause})
    assert report == (
        "actor_rollout rank 1 failed:\nTraceback (most recent call last):\n"
        '  File "worker.py", line 7, in update\nLookupError: the cause'
    )


def test_a_file_that_the_system_refused_to_all_ranks_is_one_sentence():
    refused = OSError(errno.ENOSPC, "No space left on device", "/run/iter_0000002.tmp/__0_0.distcp")
    failures: dict[int, Any] = {rank: RayTaskError("call", "Traceback ...", refused) for rank in (0, 1)}
    sentence = "actor: /run/iter_0000002.tmp/__0_0.distcp: No space left on device; free some space and start the same"
    assert str(told_by_ranks("actor", failures)).startswith(sentence)
    assert told_by_ranks("actor", {0: failures[0], 1: RayActorError()}) is None
    assert (
        told_by_ranks("actor", {0: RayTaskError("call", "Traceback ...", ConnectionResetError(104, "reset"))}) is None
    )


def test_a_mistake_that_a_rank_tells_is_its_own_sentence():
    mistake = UserError("iter_0000002/__0_0.distcp is damaged")
    failures: dict[int, Any] = {1: RayTaskError("call", "Traceback ...", mistake)}
    assert told_by_ranks("actor", failures) is mistake
    assert told_by_ranks("actor", {**failures, 0: RayActorError()}) is None


def test_a_temporary_directory_that_ray_cannot_use_is_named(monkeypatch):
    def refuse(**_):
        raise OSError("AF_UNIX path length cannot exceed 107 bytes: /very/long")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("TMPDIR", "/very/long")
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(UserError, match="TMPDIR: Ray cannot put its files into /very/long .*107 bytes.*set RAY_TMPDIR"):
        RayCluster()
