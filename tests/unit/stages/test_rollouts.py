"""Requests and sums per sequence."""

import numpy as np
import torch

from mindllm.data import Prompt
from mindllm.data.sequences import Sequences
from mindllm.stages.rollouts import make_requests, token_sums


def prompt(index: int, length: int = 2) -> Prompt:
    return Prompt(index, np.arange(length, dtype=np.int32), {"prompt": f"number {index}"})


def test_samples_of_a_prompt_are_neighbours_with_numbers_of_their_own():
    requests = make_requests([prompt(7), prompt(3, length=4)], 3)
    assert requests.prompt_index.tolist() == [7, 7, 7, 3, 3, 3]
    assert requests.sample_index.tolist() == [0, 1, 2, 0, 1, 2]
    assert requests.prompt_lengths.tolist() == [2, 2, 2, 4, 4, 4]
    assert requests.num_response_tokens == 0


def test_a_prompt_that_occurs_again_in_a_batch_draws_other_samples():
    requests = make_requests([prompt(7), prompt(3), prompt(7)], 2)
    identities = list(zip(requests.prompt_index.tolist(), requests.sample_index.tolist(), strict=True))
    assert len(set(identities)) == 6
    assert identities[4:] == [(7, 2), (7, 3)]


def test_token_sums_are_per_sequence_and_zero_for_an_empty_response():
    sequences = Sequences.from_lists([[1], [1], [1]], [[2, 3], [], [4]])
    assert token_sums(torch.tensor([1.0, 2.0, 5.0]), sequences).tolist() == [3.0, 0.0, 5.0]
