"""Many samples of one prompt follow the distribution that transformers' logits and filters define."""

import dataclasses

import pytest
import torch
from torch import Tensor

from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.rollout import SamplingParams
from tests.distributed import ranks
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import response_logits
from tests.distributed.sampling_reference import filtered_scores

PROMPT = [3, 100, 0, 57, 12]
COUNT = 6000
PLAIN = SamplingParams(
    do_sample=True,
    temperature=0.8,
    top_k=-1,
    top_p=1.0,
    max_new_tokens=1,
    min_new_tokens=0,
    stop_token_ids=(),
    seed=1,
    iteration=0,
)
CASES = {
    "plain": PLAIN,
    "top-k": dataclasses.replace(PLAIN, top_k=10),
    "top-p": dataclasses.replace(PLAIN, top_p=0.5),
    "both": dataclasses.replace(PLAIN, top_k=30, top_p=0.6),
    "no-end-yet": dataclasses.replace(PLAIN, min_new_tokens=1, stop_token_ids=tuple(range(0, 251, 3))),
}


def counts_on_rank(model: TinyModel, layout: Layout) -> dict[str, Tensor] | None:
    """[vocabulary] how often each token was drawn, by case."""
    worker = ranks.make_worker(model, ranks.actor_config(layout, num_samples_per_step=COUNT))
    requests = Sequences.from_lists([PROMPT] * COUNT, [[]] * COUNT)
    requests.prompt_index = torch.zeros(COUNT, dtype=torch.int64)
    requests.sample_index = torch.arange(COUNT)
    counts = {}
    for name, params in CASES.items():
        result = worker.generate(requests, params)
        if result is not None:
            drawn = result[0].tokens.view(COUNT, len(PROMPT) + 1)[:, -1]
            counts[name] = torch.bincount(drawn, minlength=model.vocab_size)
    return counts or None


def upper_quantile(degrees: int) -> float:
    """0.1 % upper quantile of chi-squared (Wilson and Hilferty, 1931)."""
    third = 2 / (9 * degrees)
    return degrees * (1 - third + 3.09 * third**0.5) ** 3


@pytest.mark.parametrize("layout", [ranks.TP1, ranks.TP2], ids=["tp1", "tp2"])
def test_frequencies_follow_the_filtered_softmax(layout: Layout, models: dict[str, TinyModel]) -> None:
    model = models["qwen2"]
    (counts,) = [answer for answer in run_ranks(layout, 1, counts_on_rank, model, layout) if answer is not None]
    with torch.no_grad():
        logits = response_logits(model.hf, PROMPT, [0])
    for name, params in CASES.items():
        probabilities = filtered_scores(logits, PROMPT, [0], params)[0].softmax(-1)
        assert not bool(counts[name][probabilities == 0].any()), f"{name}: drew a token that the filter cut"
        expected = probabilities * COUNT
        common = expected >= 5
        assert bool((counts[name][common] > 0).all()), f"{name}: a likely token never came"
        observed = torch.cat((counts[name][common], counts[name][~common].sum()[None])).double()
        expected = torch.cat((expected[common], expected[~common].sum()[None]))
        observed, expected = observed[expected > 0], expected[expected > 0]
        chi_squared = float(((observed - expected) ** 2 / expected).sum())
        assert chi_squared < upper_quantile(len(expected) - 1), f"{name}: {chi_squared:.1f}"
