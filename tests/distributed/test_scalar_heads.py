"""Scores and values of a converted reward model equal those of transformers, packed, ragged and at any layout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mindllm.config import RewardModelConfig
from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.workers.critic import CriticWorker
from mindllm.workers.dispatch import Scatter
from mindllm.workers.model import batch_limits
from mindllm.workers.reward import RewardWorker
from tests.distributed import ranks, scalars
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks

LAYOUTS = {
    "tp1": ranks.TP1,
    "tp2": ranks.TP2,
    "pp2": ranks.PP2,
    "tp2-pp2": ranks.TP2_PP2,
    "tp2-sp": ranks.TP2_SP,
    "pp2-vpp2": ranks.PP2_VPP2,
}
BUDGET = 60  # tokens per micro-batch: several, of different lengths


def make_sequences(vocab_size: int) -> Sequences:
    """Ragged lengths: the shortest prompt, an empty response, a response that fills the window."""
    generator = torch.Generator().manual_seed(5)

    def ids(count: int) -> list[int]:
        return torch.randint(vocab_size, (count,), generator=generator).tolist()

    lengths = [(1, 7), (20, 26), (1, 0), (11, 2), (7, 0), (7, 9), (3, 45)]
    return Sequences.from_lists([ids(p) for p, _ in lengths], [ids(r) for _, r in lengths])


def heads_on_rank(models: list[TinyModel], layout: Layout) -> list[tuple[Tensor | None, Tensor | None]]:
    """Per model: values of all states from a critic, scores from a reward model; in the order of the share."""
    config = scalars.critic_config(layout, max_tokens_per_micro_batch=BUDGET)
    frozen = RewardModelConfig(**{k: v for k, v in config.model_dump().items() if k in RewardModelConfig.model_fields})
    results = []
    for model in models:
        share = scalars.share_of(make_sequences(model.vocab_size), config)
        critic = CriticWorker(config, model.checkpoint, 1, False)
        results.append((critic.values(share), RewardWorker(frozen, model.checkpoint).scores(share)))
    return results


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_scores_equal_those_of_hugging_face(name: str, scalar_models: dict[str, TinyModel]) -> None:
    layout = LAYOUTS[name]
    answers = run_ranks(layout, 1, heads_on_rank, list(scalar_models.values()), layout)
    config = scalars.critic_config(layout, max_tokens_per_micro_batch=BUDGET)
    for number, model in enumerate(scalar_models.values()):
        sequences = make_sequences(model.vocab_size)
        scatter = Scatter(sequences, batch_limits(config, 1))
        heard: list[Any] = [answer[number] for answer in answers if answer[number][0] is not None]
        assert len(heard) == 1
        values, scores = heard[0]
        with torch.no_grad():
            expected = [
                scalars.values_of(model.hf, prompt, response)[len(prompt) - 1 :]
                for prompt, response in sequences.token_lists()
            ]
            last = scalars.last_scores(model.hf, sequences)
        states = scatter.gather([values], sequences.response_lengths + 1)
        torch.testing.assert_close(states, torch.cat(expected), rtol=0, atol=1e-4)
        torch.testing.assert_close(scatter.gather([scores], torch.ones(len(sequences), dtype=torch.int64)), last)
        assert float(last.std()) > 0.1  # scores that differ, so that a wrong row would be seen
