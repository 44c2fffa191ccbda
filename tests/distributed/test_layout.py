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
LARGE_LAYOUTS = {
    "tp4": (ranks.TP4, 1),
    "tp2-dp2": (ranks.TP2, 2),
    "pp2-dp2": (ranks.PP2, 2),
    "tp2-pp2-sp": (Layout(tensor=2, pipeline=2, sequence_parallel=True), 1),
    "tp2-pp2-vpp2-sp": (Layout(tensor=2, pipeline=2, virtual_pipeline=2, sequence_parallel=True), 1),
    "pp4": (Layout(pipeline=4), 1),
    "dp4": (ranks.TP1, 4),
    "tp4-sp": (Layout(tensor=4, sequence_parallel=True), 1),
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


@pytest.mark.parametrize("name", [*LAYOUTS, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE_LAYOUTS)])
def test_loss_gradients_and_weights_equal_those_of_hugging_face_and_torch(
    name: str, models: dict[str, TinyModel], batches: dict[str, Sequences], expected: dict[Any, Any]
) -> None:
    layout, data_parallel = {**LAYOUTS, **LARGE_LAYOUTS}[name]
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


def gradients_of_odd_batches_on_rank(model: TinyModel, batches: list[Sequences], layout: Layout) -> list[Any]:
    """The SFT update of each batch, one sequence per micro-batch."""
    config = ranks.actor_config(layout, UNCLIPPED, use_distributed_optimizer=False, micro_batch_size=1)
    worker, results = ranks.make_worker(model, config), []
    for batch in batches:
        share = ranks.share_of(batch, config)
        answer = worker.update(share, ranks.objective("sft", batch))
        results.append((answer, shards.gradients(worker.chunks), share.counts))
        load_model(worker.chunks, model.checkpoint)
    return results


@pytest.mark.parametrize("name", ["tp2-sp", "pp2-vpp2", "dp2"])
def test_a_micro_batch_without_sequences_or_without_scored_tokens_adds_nothing(
    name: str, models: dict[str, TinyModel], batches: dict[str, Sequences]
) -> None:
    layout, data_parallel = LAYOUTS[name]
    model = models["qwen2"]
    # the second sequence alone leaves ranks or pipeline slots empty; the third has no response
    odd = [batches["qwen2"].select([1]), batches["qwen2"].select([0, 2, 3])]
    answers = run_ranks(layout, data_parallel, gradients_of_odd_batches_on_rank, model, odd, layout)
    if name != "tp2-sp":
        assert any(0 in answer[0][2] for answer in answers), "a micro-batch should have been empty"
    for number, batch in enumerate(odd):
        trainer = TorchTrainer(model, UNCLIPPED)
        terms, gradients = trainer.backward("sft", batch), trainer.gradients()
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        check_numbers([answer[number][0] for answer in answers], terms, norm, name)
        pieces = [piece for answer in answers for piece in answer[number][1]]
        shards.assert_equal_tensors(shards.assemble(pieces, model.arch), gradients, TOLERANCE, name)
