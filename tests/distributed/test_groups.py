"""Where ranks stand, who speaks for a replica, and how a value reaches every pipeline stage."""

from typing import Any

import pytest
import torch

from mindllm.models.builder import Layout
from mindllm.parallel.groups import broadcast_from_last_stage, coordinates
from tests.distributed import ranks
from tests.distributed.pool import run_ranks


def place_on_rank() -> Any:
    place = coordinates()
    value = torch.tensor([float(torch.distributed.get_rank()), float(place.data_rank)])
    return place, broadcast_from_last_stage(value).tolist()


@pytest.mark.parametrize(
    ("layout", "data_parallel"),
    [(ranks.TP1, 2), (ranks.TP2, 2), (ranks.PP2, 2), (ranks.TP2_PP2, 1), (ranks.PP2_VPP2, 1)],
)
def test_one_rank_answers_for_each_replica(layout: Layout, data_parallel: int) -> None:
    answers = run_ranks(layout, data_parallel, place_on_rank)
    places = [place for place, _ in answers]
    spots = {(place.data_rank, place.tensor_rank, place.pipeline_rank) for place in places}
    assert len(spots) == layout.model_ranks * data_parallel == len(answers)
    assert all(place.data_size == data_parallel for place in places)
    collectors = [place for place in places if place.is_collector]
    assert sorted(place.data_rank for place in collectors) == list(range(data_parallel))
    for place in collectors:
        assert (place.tensor_rank, place.pipeline_rank) == (0, layout.pipeline - 1)


@pytest.mark.parametrize(("layout", "data_parallel"), [(ranks.TP1, 2), (ranks.PP2, 2), (ranks.TP2_PP2, 1)])
def test_the_last_stage_of_the_same_replica_and_shard_is_heard(layout: Layout, data_parallel: int) -> None:
    answers = run_ranks(layout, data_parallel, place_on_rank)
    last = {
        (place.data_rank, place.tensor_rank): rank
        for rank, (place, _) in enumerate(answers)
        if place.pipeline_rank == layout.pipeline - 1
    }
    for place, value in answers:
        assert value == [last[place.data_rank, place.tensor_rank], place.data_rank]
