"""A worker group sends every rank its replica's share and hears one answer from each replica."""

from typing import Any

from mindllm.parallel.groups import Coordinates
from mindllm.workers.group import WorkerGroup


class RecordingRanks:
    """TP2 x DP2, tensor-parallel ranks next to each other; every rank answers with its number."""

    def __init__(self) -> None:
        self.coordinates = [
            Coordinates(
                data_rank=rank // 2, data_size=2, tensor_rank=rank % 2, pipeline_rank=0, is_collector=not rank % 2
            )
            for rank in range(4)
        ]
        self.calls: list[tuple[str, list[tuple[Any, ...]]]] = []

    def run(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        self.calls.append((method, arguments))
        return [f"rank {rank}" for rank in range(4)]

    def close(self) -> None: ...


def test_every_rank_builds_the_role_with_the_same_arguments():
    ranks = RecordingRanks()
    WorkerGroup(ranks, "ref", ("config", "checkpoint"))
    assert ranks.calls == [("create", [("ref", ("config", "checkpoint"))] * 4)]


def test_ranks_of_a_replica_get_the_same_share_and_its_collector_answers():
    ranks = RecordingRanks()
    group = WorkerGroup(ranks, "ref", ())
    assert group.data_parallel == 2
    assert group.call("logprobs", ["first", "second"], 0.7) == ["rank 0", "rank 2"]
    method, arguments = ranks.calls[-1]
    assert method == "call"
    assert [shares for _, _, shares in arguments] == [("first", 0.7)] * 2 + [("second", 0.7)] * 2


def test_a_call_on_all_ranks_carries_no_share():
    ranks = RecordingRanks()
    WorkerGroup(ranks, "actor_rollout", ()).call_all("save", "directory")
    assert ranks.calls[-1] == ("call", [("actor_rollout", "save", ("directory",))] * 4)
