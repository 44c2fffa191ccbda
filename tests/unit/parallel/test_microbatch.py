"""Packing of jagged sequences: positions, segments, the rows that are scored and their targets."""

import pytest
import torch

from mindllm.data.sequences import Sequences
from mindllm.parallel.microbatch import make_micro_batch

PROMPTS, RESPONSES = [[1, 2], [3], [4, 5, 6], [7]], [[10, 11, 12], [], [13], [14, 15]]


def test_each_response_token_is_predicted_from_the_row_before_it() -> None:
    batch = make_micro_batch(Sequences.from_lists(PROMPTS, RESPONSES))
    assert batch.tokens.tolist() == [1, 2, 10, 11, 12, 3, 4, 5, 6, 13, 7, 14, 15]
    assert batch.pack.positions.tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0, 1, 2]
    assert batch.pack.lengths == [5, 1, 4, 3]
    assert batch.targets.tolist() == [10, 11, 12, 13, 14, 15]
    assert batch.tokens[batch.pack.score_index].tolist() == [2, 10, 11, 6, 7, 14]
    assert batch.tokens[batch.pack.score_index + 1].tolist() == batch.targets.tolist()


@pytest.mark.parametrize(("multiple", "filler"), [(1, 0), (2, 1), (4, 3), (13, 0)])
def test_a_filler_segment_completes_the_length_and_is_never_scored(multiple: int, filler: int) -> None:
    sequences = Sequences.from_lists(PROMPTS, RESPONSES)
    plain, padded = make_micro_batch(sequences), make_micro_batch(sequences, multiple)
    assert len(padded.tokens) == 13 + filler and len(padded.tokens) % multiple == 0
    assert padded.pack.lengths == plain.pack.lengths + [filler] * (filler > 0)
    assert sum(padded.pack.lengths) == len(padded.pack.positions) == len(padded.tokens)
    assert padded.pack.positions[13:].tolist() == list(range(filler))
    assert torch.equal(padded.pack.score_index, plain.pack.score_index)
    assert torch.equal(padded.targets, plain.targets)


@pytest.mark.parametrize("multiple", [1, 4])
def test_no_sequences_make_one_filler_segment_and_nothing_to_score(multiple: int) -> None:
    batch = make_micro_batch(Sequences.from_lists(PROMPTS, RESPONSES).select([]), multiple)
    assert batch.tokens.tolist() == [0] * multiple and batch.pack.lengths == [multiple]
    assert batch.pack.score_index.numel() == batch.targets.numel() == 0


def test_per_token_fields_come_along_and_a_target_of_id_0_stays() -> None:
    sequences = Sequences.from_lists([[5], [6]], [[0, 1], [0]])
    sequences.advantages = torch.tensor([1.0, 2.0, 3.0])
    sequences.loss_mask = torch.tensor([True, False, True])
    batch = make_micro_batch(sequences.select([1, 0]))
    assert batch.targets.tolist() == [0, 0, 1]
    assert batch.sequences.advantages.tolist() == [3.0, 1.0, 2.0]
    assert batch.sequences.loss_mask.tolist() == [True, True, False]
