"""Examples as sequences."""

import numpy as np

from mindllm.data import Example
from mindllm.stages.sft import to_sequences


def example(ids: list[int], labels: list[int]) -> Example:
    return Example(0, np.array(ids, dtype=np.int32), np.array(labels, dtype=np.int32))


def test_the_response_runs_from_the_first_to_the_last_trained_token():
    turns = example([5, 6, 7, 8, 9, 10, 11], [-100, -100, 7, -100, 9, 10, -100])
    sequences = to_sequences([turns], [0])
    assert sequences.token_lists() == [([5, 6], [7, 8, 9, 10])]
    assert sequences.loss_mask.tolist() == [True, False, True, True]


def test_a_trained_first_token_has_no_context_and_is_left_out():
    sequences = to_sequences([example([5, 6, 7], [5, 6, 7])], [0, 0])
    assert sequences.token_lists() == [([5], [6, 7])] * 2
    assert sequences.loss_mask.tolist() == [True] * 4
