"""The resumable sampler."""

import json

import numpy as np
import pytest

from mindllm.data import ResumableSampler
from mindllm.errors import UserError


def take(sampler: ResumableSampler, batches: int) -> list[int]:
    return [index for _ in range(batches) for index in sampler.next_indices()]


def test_every_epoch_holds_every_sample_once_in_another_order() -> None:
    order = take(ResumableSampler(10, 5, seed=3, shuffle=True), 6)
    epochs = [order[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10, 25])
def test_batches_are_full_and_cross_epoch_borders(batch_size: int) -> None:
    sampler = ResumableSampler(10, batch_size, seed=0, shuffle=True)
    batches = [sampler.next_indices() for _ in range(12)]
    assert all(len(batch) == batch_size for batch in batches)
    order = [index for batch in batches for index in batch]
    assert order == take(ResumableSampler(10, 1, seed=0, shuffle=True), 12 * batch_size)


def test_without_shuffling_the_order_is_that_of_the_data() -> None:
    assert take(ResumableSampler(4, 3, seed=0, shuffle=False), 3) == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_state_goes_through_json_and_continues_the_same_order() -> None:
    whole = ResumableSampler(11, 4, seed=5, shuffle=True)
    expected = take(whole, 9)
    first = ResumableSampler(11, 4, seed=5, shuffle=True)
    seen = take(first, 5)
    resumed = ResumableSampler(11, 4, seed=5, shuffle=True)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert seen + take(resumed, 4) == expected


def test_the_order_is_fixed_for_ever() -> None:
    assert take(ResumableSampler(8, 8, seed=0, shuffle=True), 2) == [0, 2, 1, 5, 4, 3, 6, 7, 5, 3, 7, 2, 4, 1, 0, 6]


def test_the_order_depends_on_the_seed_and_looks_random() -> None:
    orders = np.array([take(ResumableSampler(100, 100, seed, shuffle=True), 1) for seed in range(200)])
    assert len({tuple(order) for order in orders}) == 200
    assert abs(orders.mean(axis=0) - 49.5).max() < 10  # about four standard errors


@pytest.mark.parametrize(("size", "seed", "shuffle"), [(12, 5, True), (11, 6, True), (11, 5, False)])
def test_a_state_of_other_data_is_refused(size: int, seed: int, shuffle: bool) -> None:
    state = ResumableSampler(11, 4, seed=5, shuffle=True).state_dict()
    with pytest.raises(
        UserError,
        match=r"cannot resume the data order: (the number of rows in data_path|training.seed|shuffling .*) was",
    ):
        ResumableSampler(size, 4, seed, shuffle).load_state_dict(state)


@pytest.mark.parametrize(("size", "first"), [(8, 3), (12, 0)], ids=["same size", "other size"])
def test_changed_data_goes_on_at_its_position_or_from_its_first_row(size: int, first: int) -> None:
    whole = ResumableSampler(8, 3, seed=5, shuffle=True)
    take(whole, 1)
    resumed = ResumableSampler(size, 3, seed=5, shuffle=True, allow_changed_data=True)
    resumed.load_state_dict(whole.state_dict())
    order = take(ResumableSampler(size, size, seed=5, shuffle=True), 1)
    assert take(resumed, 1) == order[first : first + 3]


def test_changed_data_does_not_allow_another_seed() -> None:
    state = ResumableSampler(11, 4, seed=5, shuffle=True).state_dict()
    with pytest.raises(UserError, match="training.seed was 5, now it is 6"):
        ResumableSampler(12, 4, seed=6, shuffle=True, allow_changed_data=True).load_state_dict(state)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(UserError, match="the data set is empty"):
        ResumableSampler(0, 4, seed=0, shuffle=True)
