"""Updates of critic and reward model at one layout against the same updates in plain torch (invariant 1)."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mindllm.checkpoint.model_io import load_model
from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.workers.critic import CriticWorker
from mindllm.workers.reward import TrainedRewardWorker
from tests.distributed import ranks, scalars, shards
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import Adam

TOLERANCE = 1e-5
BUDGETS = (60, 4096)  # tokens per micro-batch: several small ones, and all in one
UNCLIPPED, CLIPPED = Adam(clip_grad=0.0), Adam()
LAYOUTS = {
    "tp2": (ranks.TP2, 1),
    "pp2": (ranks.PP2, 1),
    "tp2-pp2": (ranks.TP2_PP2, 1),
    "pp2-vpp2": (ranks.PP2_VPP2, 1),
    "tp2-sp": (ranks.TP2_SP, 1),
    "dp2": (ranks.TP1, 2),
}
_WORKERS = {"value": CriticWorker, "pairs": TrainedRewardWorker}


@dataclass(frozen=True)
class Expected:
    """What plain torch says of one update: its terms, gradients and their norm; and the weights after a clipped one."""

    terms: dict[str, float]
    gradients: dict[str, torch.Tensor]
    norm: float
    weights: dict[str, torch.Tensor]


def expected_update(kind: str, model: TinyModel, batch: Sequences) -> Expected:
    """The reference of ``check_layout``."""
    trainer = scalars.ScalarTrainer(model, UNCLIPPED)
    terms = trainer.backward(kind, batch)
    gradients = trainer.gradients()
    stepped = scalars.ScalarTrainer(model, CLIPPED)
    stepped.backward(kind, batch)
    norm = stepped.step()
    return Expected(terms, gradients, norm, stepped.weights())


def updates_on_rank(kind: str, models: list[TinyModel], batches: list[Sequences], layout: Layout) -> list[Any]:
    """Per model: (answer, gradients) for each budget, and (answer, weights) after a clipped step."""
    results = []
    for model, batch in zip(models, batches, strict=True):
        objective = scalars.objective(kind, batch)
        config = scalars.critic_config(layout, UNCLIPPED, use_distributed_optimizer=False)
        worker = _WORKERS[kind](config, model.checkpoint, 100, False)
        gradients = []
        for budget in BUDGETS:
            limited = config.model_copy(update={"max_tokens_per_micro_batch": budget})
            answer = worker.update(scalars.share_of(batch, limited, objective.unit), objective)
            gradients.append((answer, shards.gradients(worker.chunks)))
            load_model(worker.chunks, model.checkpoint)
        config = scalars.critic_config(layout, CLIPPED, max_tokens_per_micro_batch=64)
        worker = _WORKERS[kind](config, model.checkpoint, 100, False)
        answer = worker.update(scalars.share_of(batch, config, objective.unit), objective)
        results.append((gradients, (answer, shards.weights(worker.chunks))))
    return results


def check_layout(
    name: str, kind: str, models: list[TinyModel], batches: list[Sequences], expected: list[Expected]
) -> None:
    """Loss terms, norm and every gradient at each budget, and every weight after a step, equal the reference's."""
    layout, data_parallel = LAYOUTS[name]
    answers = run_ranks(layout, data_parallel, updates_on_rank, kind, models, batches, layout)
    for number, (model, truth) in enumerate(zip(models, expected, strict=True)):
        for which, budget in enumerate(BUDGETS):
            what = f"{name} {model.name} {budget}"
            outcome = [answer[number][0][which] for answer in answers]
            _check_numbers([update for update, _ in outcome], truth, what)
            pieces = [piece for _, part in outcome for piece in part]
            shards.assert_equal_tensors(shards.assemble(pieces, model.arch), truth.gradients, TOLERANCE, what)
        what = f"{name} {model.name} after a step"
        outcome = [answer[number][1] for answer in answers]
        _check_numbers([update for update, _ in outcome], truth, what)
        pieces = [piece for _, part in outcome for piece in part]
        shards.assert_equal_tensors(shards.assemble(pieces, model.arch), truth.weights, TOLERANCE, what)


def _check_numbers(updates: list[Any], truth: Expected, what: str) -> None:
    ours, norm = scalars.combined(updates)
    for term, value in truth.terms.items():
        assert ours[term] == pytest.approx(value, rel=TOLERANCE), f"{what}: {term}"
    assert norm == pytest.approx(truth.norm, rel=TOLERANCE), f"{what}: gradient norm"
