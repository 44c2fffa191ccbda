"""The jagged batch type."""

import pytest
import torch

from mindllm.data.sequences import Sequences


@pytest.fixture
def batch() -> Sequences:
    sequences = Sequences.from_lists([[1, 2], [3], [4, 5, 6]], [[7], [], [8, 9]])
    sequences.rollout_logprobs = torch.tensor([-0.1, -0.2, -0.3])
    sequences.rewards = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    return sequences


def test_select_takes_sequences_with_their_tokens_in_the_order_asked_for(batch: Sequences) -> None:
    chosen = batch.select([2, 0, 2])
    assert chosen.token_lists() == [([4, 5, 6], [8, 9]), ([1, 2], [7]), ([4, 5, 6], [8, 9])]
    assert chosen.rollout_logprobs.tolist() == pytest.approx([-0.2, -0.3, -0.1, -0.2, -0.3])
    assert chosen.rewards.tolist() == [3.0, 1.0, 3.0]


def test_selecting_nothing_gives_an_empty_batch(batch: Sequences) -> None:
    assert len(batch.select([])) == 0


def test_concatenating_what_was_split_gives_the_batch_back(batch: Sequences) -> None:
    again = Sequences.concatenate([batch.select([0]), batch.select([1, 2])])
    assert again.token_lists() == batch.token_lists()
    assert torch.equal(again.rollout_logprobs, batch.rollout_logprobs)


def test_a_field_of_another_length_is_refused_when_it_is_set(batch: Sequences) -> None:
    with pytest.raises(ValueError, match="advantages has shape .4,., but there are 3 response tokens"):
        batch.advantages = torch.zeros(4)
    with pytest.raises(ValueError, match="rewards has shape .2,., but there are 3 sequences"):
        batch.rewards = torch.zeros(2)


def test_tokens_that_do_not_match_the_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens has shape .2,., but there are 3 tokens"):
        Sequences(torch.zeros(2, dtype=torch.int64), torch.tensor([2]), torch.tensor([1]))


def test_parts_with_and_without_a_field_do_not_join(batch: Sequences) -> None:
    bare = Sequences.from_lists([[1]], [[2]])
    with pytest.raises(ValueError, match="is set in 1 of 2 parts"):
        Sequences.concatenate([batch, bare])
