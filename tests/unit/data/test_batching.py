"""Division of a batch over data-parallel ranks and micro-batches."""

import random

import pytest

from mindllm.data.batching import balanced_bins, plan_micro_batches


@pytest.mark.parametrize("data_parallel", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_every_sequence_is_planned_once_within_the_budgets(data_parallel: int, multiple: int) -> None:
    random.seed(data_parallel)
    lengths = [random.randint(1, 40) for _ in range(57)]
    plan = plan_micro_batches(lengths, data_parallel, max_tokens=64, max_sequences=5, multiple=multiple)
    assert sorted(i for rank in plan for members in rank for i in members) == list(range(57))
    assert len({len(rank) for rank in plan}) == 1, "pipeline schedules need equal counts on all ranks"
    assert len(plan[0]) % multiple == 0
    for members in (members for rank in plan for members in rank):
        assert len(members) <= 5
        assert sum(lengths[i] for i in members) <= 64


def test_a_sequence_longer_than_the_budget_has_a_micro_batch_of_its_own() -> None:
    plan = plan_micro_batches([100, 10, 10], 1, max_tokens=20)
    assert [0] in plan[0]


def test_fewer_sequences_than_ranks_leave_empty_micro_batches() -> None:
    plan = plan_micro_batches([5], 2, max_tokens=20, multiple=2)
    assert [len(rank) for rank in plan] == [2, 2]
    assert sum(len(members) for rank in plan for members in rank) == 1


def test_ranks_get_close_token_sums() -> None:
    lengths = [90, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    bins = balanced_bins(lengths, 2)
    assert sorted(sum(lengths[i] for i in members) for members in bins) == [90, 90]
