"""How far a call is reaches the driver: directly from an inline rank, through Ray's key-value store from others."""

from typing import Any

import pytest

from mindllm.parallel.groups import Coordinates
from mindllm.workers import rank, ray_ranks
from mindllm.workers.rank import RankProcess
from mindllm.workers.ray_ranks import RayRanks


class Counting:
    """A worker that counts to what it is asked for."""

    report: Any = None

    def count(self, number: int) -> int:
        for done in range(1, number + 1):
            self.report(done)
        return number


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What stands for Ray's key-value store, and a clock that passes two seconds whenever it is looked at."""
    values: dict[str, bytes] = {}
    monkeypatch.setattr(
        "ray.experimental.internal_kv._internal_kv_put", lambda key, value: values.update({key: value.encode()})
    )
    monkeypatch.setattr(ray_ranks, "_internal_kv_get", values.get)
    monkeypatch.setattr(rank, "_worker_class", lambda role: Counting)
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(rank.time, "monotonic", lambda: float(next(clock)))
    return values


def test_an_inline_rank_tells_its_watcher(store):
    told: list[int] = []
    process = RankProcess(told.append)
    process.create("actor_rollout", ())
    assert process.call("actor_rollout", "count", (3,)) == 3
    assert told == [1, 2, 3]


def test_the_reports_of_all_replicas_to_the_current_call_are_added_up(store):
    told: list[int] = []
    ranks = RayRanks.__new__(RayRanks)
    ranks._watcher, ranks._reports = told.append, "key"
    # TP2 x DP2: the ranks of a replica report the same, so one of them is heard.
    ranks.coordinates = [Coordinates(number // 2, 2, number % 2, 0, number % 2 == 0) for number in range(4)]
    processes = [RankProcess() for _ in range(4)]
    for number, process in enumerate(processes):
        process.report_under(f"key/{number}")
        process.create("actor_rollout", ())
        process.call("actor_rollout", "count", (3 + number // 2,))
    ranks._tell_watcher(1)
    assert told == [3 + 4]
    ranks._tell_watcher(2)  # of which nobody has reported yet
    assert told == [3 + 4]
    processes[2].call("actor_rollout", "count", (2,))
    ranks._tell_watcher(2)
    assert told == [3 + 4, 2]


def test_a_store_that_is_away_does_not_end_a_call(store, monkeypatch):
    def fail(key: str, value: str) -> None:
        raise ConnectionError(key)

    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_put", fail)
    process = RankProcess()
    process.report_under("key/0")
    process.create("actor_rollout", ())
    assert process.call("actor_rollout", "count", (3,)) == 3


def test_peaks_are_kept_by_role_and_method_until_they_are_taken(store):
    process = RankProcess([].append)
    process.create("ref", ())
    process.call("ref", "count", (1,))
    assert {key: size > 0 for key, size in process.take_peaks().items()} == {
        ("ref", "load"): True,
        ("ref", "count"): True,
    }
    assert process.take_peaks() == {}
