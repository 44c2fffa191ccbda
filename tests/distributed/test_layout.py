"""Invariant 1: loss, gradients and updated weights do not depend on how model and batch are divided."""

from typing import Any

import pytest
import torch

from mindllm.checkpoint.model_io import load_model
from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.parallel.groups import coordinates
from tests.distributed import ranks, shards
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import Adam, TorchTrainer, make_batch

TOLERANCE = 1e-5
BUDGETS = (40, 4096)  # tokens per micro-batch: several small ones, and all in one
UNCLIPPED = Adam(clip_grad=0.0)
CLIPPED = Adam()
LAYOUTS = {
    "tp1": (ranks.TP1, 1),
    "tp2": (ranks.TP2, 1),
    "pp2": (ranks.PP2, 1),
    "tp2-pp2": (ranks.TP2_PP2, 1),
    "pp2-vpp2": (ranks.PP2_VPP2, 1),
    "tp2-sp": (ranks.TP2_SP, 1),
    "dp2": (ranks.TP1, 2),
}


def gradients_on_rank(models: list[TinyModel], batches: list[Sequences], layout: Layout) -> list[Any]:
    """Per model, objective and budget: the answer of ``update``, the gradients and the weights it led to."""
    results = []
    for model, batch in zip(models, batches, strict=True):
        config = ranks.actor_config(layout, UNCLIPPED, use_distributed_optimizer=False)
        worker = ranks.make_worker(model, config)
        for kind in ("sft", "grpo"):
            for budget in BUDGETS:
                share = ranks.share_of(batch, config.model_copy(update={"max_tokens_per_micro_batch": budget}))
                answer = worker.update(share, ranks.objective(kind, batch))
                results.append((answer, shards.gradients(worker.chunks), coordinates().data_rank))
                load_model(worker.chunks, model.checkpoint)
    return results


def steps_on_rank(models: list[TinyModel], batches: list[Sequences], layout: Layout) -> list[Any]:
    """Per model: answers of a GRPO and an SFT step with the distributed optimizer, and the weights after each."""
    results = []
    for model, batch in zip(models, batches, strict=True):
        config = ranks.actor_config(layout, CLIPPED, max_tokens_per_micro_batch=64)
        worker = ranks.make_worker(model, config)
        for kind in ("grpo", "sft"):
            answer = worker.update(ranks.share_of(batch, config), ranks.objective(kind, batch))
            results.append((answer, shards.weights(worker.chunks)))
    return results


def gradients_and_steps(models: list[TinyModel], batches: list[Sequences], layout: Layout) -> tuple[Any, Any]:
    return gradients_on_rank(models, batches, layout), steps_on_rank(models, batches, layout)


@pytest.fixture(scope="module")
def batches(models: dict[str, TinyModel]) -> dict[str, Sequences]:
    return {name: make_batch(model) for name, model in models.items()}


@pytest.fixture(scope="module")
def expected(models: dict[str, TinyModel], batches: dict[str, Sequences]) -> dict[Any, Any]:
    """Reference terms, gradients, norms and weights; by (model, objective), and (model, "steps")."""
    results: dict[Any, Any] = {}
    for name in ("qwen3", "qwen2"):
        for kind in ("sft", "grpo"):
            trainer = TorchTrainer(models[name], UNCLIPPED)
            terms = trainer.backward(kind, batches[name])
            gradients = trainer.gradients()
            norm = torch.nn.utils.get_total_norm(gradients.values())
            results[name, kind] = (terms, float(norm), gradients)
        trainer, steps = TorchTrainer(models[name], CLIPPED), []
        for kind in ("grpo", "sft"):
            terms = trainer.backward(kind, batches[name])
            steps.append((terms, trainer.step(), trainer.weights()))
        results[name, "steps"] = steps
    return results


@pytest.mark.parametrize("name", LAYOUTS)
def test_loss_gradients_and_weights_equal_those_of_hugging_face_and_torch(
    name: str, models: dict[str, TinyModel], batches: dict[str, Sequences], expected: dict[Any, Any]
) -> None:
    layout, data_parallel = LAYOUTS[name]
    names = ["qwen3", "qwen2"]
    answers = run_ranks(
        layout, data_parallel, gradients_and_steps, [models[n] for n in names], [batches[n] for n in names], layout
    )
    jobs = [(n, kind, budget) for n in names for kind in ("sft", "grpo") for budget in BUDGETS]
    for number, (model, kind, budget) in enumerate(jobs):
        what = f"{name} {model} {kind} {budget}"
        outcome = [gradients[number] for gradients, _ in answers]
        terms, norm, gradients = expected[model, kind]
        check_numbers([update for update, *_ in outcome], terms, norm, what)
        pieces = [piece for _, pieces, _ in outcome for piece in pieces]
        shards.assert_equal_tensors(shards.assemble(pieces, models[model].arch), gradients, TOLERANCE, what)
    for number, (model, step) in enumerate((n, step) for n in names for step in range(2)):
        what = f"{name} {model} after step {step + 1}"
        outcome = [steps[number] for _, steps in answers]
        terms, norm, weights = expected[model, "steps"][step]
        check_numbers([update for update, _ in outcome], terms, norm, what)
        pieces = [piece for _, pieces in outcome for piece in pieces]
        shards.assert_equal_tensors(shards.assemble(pieces, models[model].arch), weights, TOLERANCE, what)


def check_numbers(updates: list[Any], terms: dict[str, float], norm: float, what: str) -> None:
    ours, our_norm = ranks.combined(updates)
    for term, value in terms.items():
        assert ours[term] == pytest.approx(value, rel=TOLERANCE), f"{what}: {term}"
    assert our_norm == pytest.approx(norm, rel=TOLERANCE), f"{what}: gradient norm"
