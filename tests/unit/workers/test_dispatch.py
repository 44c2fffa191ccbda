"""One call becomes one per replica, and the answers one answer in the original order."""

import pytest
import torch

from mindllm.data.sequences import Sequences
from mindllm.workers.dispatch import BatchLimits, Scatter, combine_metrics, divide_requests


def ragged(count: int = 11) -> Sequences:
    """Sequence i has a prompt of 1 + i % 3 tokens and a response of (7 * i) % 5, which may be none."""
    prompts = [[100 + i] * (1 + i % 3) for i in range(count)]
    responses = [[i] * ((7 * i) % 5) for i in range(count)]
    sequences = Sequences.from_lists(prompts, responses)
    sequences.prompt_index = torch.arange(count) // 3
    return sequences


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize(("max_tokens", "max_sequences", "multiple"), [(1000, None, 1), (8, None, 2), (1000, 1, 1)])
def test_tokens_come_back_in_the_order_of_the_sequences(replicas, max_tokens, max_sequences, multiple):
    sequences = ragged()
    scatter = Scatter(sequences, BatchLimits(replicas, max_tokens, max_sequences, multiple))
    assert len(scatter.shares) == replicas
    answers = []
    for share in scatter.shares:
        parts = share.micro_batches()
        assert len(parts) == len(scatter.shares[0].counts) and len(parts) % multiple == 0
        # A rank answers with one value per response token: here the token itself.
        answers.append(torch.cat([torch.tensor([t for _, r in part.token_lists() for t in r]) for part in parts]))
    gathered = scatter.gather_tokens(answers)
    assert gathered.tolist() == [token for _, response in sequences.token_lists() for token in response]


def test_every_sequence_is_in_exactly_one_micro_batch():
    sequences = ragged()
    scatter = Scatter(sequences, BatchLimits(2, 8, None, 1))
    first_tokens = [
        prompt[0] for share in scatter.shares for part in share.micro_batches() for prompt, _ in part.token_lists()
    ]
    assert sorted(first_tokens) == [100 + i for i in range(len(sequences))]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_samples_of_a_prompt_are_generated_by_one_replica(replicas):
    requests = ragged(12)
    division = divide_requests(requests, replicas)
    assert sorted(index for members in division for index in members) == list(range(12))
    homes = [{requests.prompt_index[i].item() for i in members} for members in division]
    assert sum(len(home) for home in homes) == 4


def test_fewer_prompts_than_replicas_are_split_so_that_none_idles():
    division = divide_requests(ragged(3), 2)
    assert all(division) and sorted(sum(division, [])) == [0, 1, 2]


def test_metrics_add_up_and_maxima_are_maxima():
    parts = [{"loss": 0.25, "deviation_max": 3.0}, {"loss": 0.5, "deviation_max": 2.0}]
    assert combine_metrics(parts) == {"loss": 0.75, "deviation_max": 3.0}
