"""The sampler on hand-made logits: ties, shards of nothing but padding, filters wider than a shard."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mindllm.models.builder import Layout
from mindllm.parallel.groups import coordinates
from mindllm.rollout import SamplingParams
from mindllm.rollout.sampler import VocabParallelSampler
from tests.distributed import ranks
from tests.distributed.pool import run_ranks

GREEDY = SamplingParams(
    do_sample=False,
    temperature=1.0,
    top_k=-1,
    top_p=1.0,
    max_new_tokens=1,
    min_new_tokens=0,
    stop_token_ids=(),
    seed=0,
    iteration=0,
)
SAMPLE = dataclasses.replace(GREEDY, do_sample=True)
VOCAB = 5
PADDING = 50.0  # logit of the padding columns: it must never win


@dataclasses.dataclass(frozen=True)
class Draw:
    """One call: parameters, probabilities [VOCAB], the uniform, whether end tokens are barred, and the answer."""

    params: SamplingParams
    probabilities: tuple[float, ...]
    uniform: float
    no_stop: bool
    expected: int


def barred(params: SamplingParams, *stops: int) -> SamplingParams:
    return dataclasses.replace(params, stop_token_ids=stops)


EVEN = (0.2, 0.2, 0.2, 0.2, 0.2)
DRAWS = [
    Draw(GREEDY, (0.1, 0.1, 0.1, 0.6, 0.1), 0.0, False, 3),
    Draw(GREEDY, EVEN, 0.9, False, 0),  # a tie across shards goes to the lowest id
    Draw(GREEDY, (0.1, 0.1, 0.1, 0.35, 0.35), 0.9, False, 3),
    Draw(barred(GREEDY, 3, 0), (0.2, 0.1, 0.06, 0.6, 0.04), 0.0, True, 1),
    Draw(barred(GREEDY, 3, 0), (0.2, 0.1, 0.06, 0.6, 0.04), 0.0, False, 3),
    Draw(SAMPLE, EVEN, 1e-12, False, 0),
    Draw(SAMPLE, EVEN, 0.59, False, 2),
    Draw(SAMPLE, EVEN, 0.61, False, 3),  # on the other side of the border between the shards
    Draw(SAMPLE, EVEN, 1 - 1e-12, False, 4),
    Draw(barred(SAMPLE, 4), EVEN, 1 - 1e-12, True, 3),
    Draw(barred(SAMPLE, 3), (0.2, 0.2, 0.2, 0.2, 0.2), 0.7500001, True, 4),
    Draw(barred(SAMPLE, 0, 1, 2), (0.5, 0.3, 0.1, 0.06, 0.04), 0.59, True, 3),
    Draw(barred(SAMPLE, 3, 4), (0.5, 0.3, 0.1, 0.06, 0.04), 0.95, True, 2),
    Draw(dataclasses.replace(SAMPLE, top_k=1), (0.1, 0.1, 0.1, 0.6, 0.1), 0.01, False, 3),
    Draw(dataclasses.replace(SAMPLE, top_k=2), (0.4, 0.1, 0.1, 0.1, 0.3), 0.58, False, 4),
    Draw(dataclasses.replace(SAMPLE, top_k=4), (0.4, 0.1, 0.2, 0.05, 0.25), 0.999, False, 4),
    Draw(dataclasses.replace(SAMPLE, top_k=100), EVEN, 0.61, False, 3),
    Draw(dataclasses.replace(SAMPLE, top_p=0.6), (0.05, 0.5, 0.05, 0.3, 0.1), 0.62, False, 1),
    Draw(dataclasses.replace(SAMPLE, top_p=0.6), (0.05, 0.5, 0.05, 0.3, 0.1), 0.63, False, 3),
    Draw(dataclasses.replace(barred(SAMPLE, 1), top_p=0.6), (0.05, 0.5, 0.05, 0.3, 0.1), 0.01, True, 3),
]


def draw_on_rank(width: int) -> list[Any]:
    """(token, log-prob) of every draw, each as one row next to an unrelated one."""
    first, results = coordinates().tensor_rank * width, []
    for draw in DRAWS:
        row = torch.tensor(draw.probabilities).log()
        logits = torch.full((2, width * torch.distributed.get_world_size()), PADDING)
        logits[0, :VOCAB], logits[1, :VOCAB] = row + 3.0, torch.zeros(VOCAB)
        local = logits[:, first : first + width].clone()
        kept = local.clone()
        sampler = VocabParallelSampler(draw.params, VOCAB)
        uniforms = torch.tensor([draw.uniform, 0.5], dtype=torch.float64)
        tokens, logprobs = sampler.draw(local, uniforms, torch.tensor([draw.no_stop, False]))
        assert torch.equal(local, kept), "the logits were changed"
        results.append((int(tokens[0]), float(logprobs[0])))
    return results


@pytest.mark.parametrize(
    ("layout", "width"),
    [(ranks.TP1, 5), (ranks.TP1, 8), (ranks.TP2, 3), (ranks.TP2, 5), (ranks.TP2, 8)],
    ids=["tp1", "tp1-padded", "tp2", "tp2-second-shard-all-padding", "tp2-padded"],
)
def test_hand_made_draws_give_the_expected_token_on_every_rank(layout: Layout, width: int) -> None:
    for answers in run_ranks(layout, 1, draw_on_rank, width):
        for draw, (token, logprob) in zip(DRAWS, answers, strict=True):
            assert token == draw.expected, draw
            # log-probs are those of the full softmax, whatever was cut or barred
            assert logprob == pytest.approx(math.log(draw.probabilities[token]), abs=1e-6), draw


def temperature_on_rank(logits: Tensor, temperature: float) -> Tensor:
    params = dataclasses.replace(SAMPLE, temperature=temperature)
    uniforms = torch.linspace(0.01, 0.99, len(logits), dtype=torch.float64)
    tokens, logprobs = VocabParallelSampler(params, logits.shape[1]).draw(
        logits, uniforms, torch.zeros(len(logits), dtype=torch.bool)
    )
    return torch.stack((tokens.double(), logprobs.double()))


@pytest.mark.parametrize("temperature", [0.05, 0.7, 3.0])
def test_the_temperature_divides_the_logits_of_draw_and_log_prob_alike(temperature: float) -> None:
    logits = torch.randn(40, 17, generator=torch.Generator().manual_seed(0)) * 2
    ((tokens, logprobs),) = run_ranks(ranks.TP1, 1, temperature_on_rank, logits, temperature)
    expected = (logits.double() / temperature).log_softmax(-1)
    cdf = expected.exp().cumsum(-1)
    uniforms = torch.linspace(0.01, 0.99, 40, dtype=torch.float64)
    assert torch.equal(tokens.long(), (cdf <= uniforms[:, None]).sum(-1))
    torch.testing.assert_close(logprobs, expected.gather(1, tokens.long()[:, None])[:, 0], rtol=1e-6, atol=1e-6)
