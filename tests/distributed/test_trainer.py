"""The optimizer step: what happens to a gradient that is not finite, and the learning rate of every step."""

import math
from typing import Any

import pytest
import torch

from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout, build_model
from mindllm.parallel.optimizer import OptimizerSettings, Trainer
from tests.distributed import ranks, shards
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import Adam, TorchTrainer, make_batch


def skip_on_rank(model: TinyModel, batch: Sequences, layout: Layout, distributed: bool) -> dict[str, Any]:
    """A good step, one with a NaN in a single gradient of the last rank, and the good one again."""
    config = ranks.actor_config(
        layout, use_distributed_optimizer=distributed, lr_decay_style="linear", max_tokens_per_micro_batch=64
    )
    worker = ranks.make_worker(model, config, total_steps=4)
    share, objective = ranks.share_of(batch, config), ranks.objective("sft", batch)
    answers = [worker.update(share, objective)]
    before = shards.weights(worker.chunks)
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        victim = next(
            p for name, p in worker.chunks[-1].named_parameters() if name.endswith("layers.1.mlp.linear_fc2.weight")
        )
        handle = victim.register_hook(lambda gradient: gradient * torch.nan)
    answers.append(worker.update(share, objective))
    after = shards.weights(worker.chunks)
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        handle.remove()
    unchanged = all(torch.equal(a.data, b.data) for a, b in zip(before, after, strict=True))
    answers.append(worker.update(share, objective))
    return {"answers": answers, "unchanged": unchanged, "weights": shards.weights(worker.chunks)}


CASES = {
    "dp2": (ranks.TP1, 2, True),
    "dp2-replicated-optimizer": (ranks.TP1, 2, False),
    "tp2": (ranks.TP2, 1, True),
    "pp2": (ranks.PP2, 1, False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_nan_on_one_rank_skips_the_step_on_all_and_leaves_no_trace(name: str, models: dict[str, TinyModel]) -> None:
    layout, data_parallel, distributed = CASES[name]
    model = models["qwen2"]
    batch = make_batch(model)
    results = run_ranks(layout, data_parallel, skip_on_rank, model, batch, layout, distributed)
    assert all(result["unchanged"] for result in results)
    for result in results:
        if result["answers"][0] is None:
            continue
        (_, _, first_lr, first), (_, norm, _, skipped), (_, _, last_lr, last) = result["answers"]
        assert (first, skipped, last) == (False, True, False)
        assert not math.isfinite(norm)
        assert (first_lr, last_lr) == (pytest.approx(1e-2), pytest.approx(0.75e-2))
    reference = TorchTrainer(model, Adam())
    for lr in (1e-2, 0.75e-2):
        reference.backward("sft", batch)
        reference.step(lr)
    pieces = [piece for result in results for piece in result["weights"]]
    shards.assert_equal_tensors(shards.assemble(pieces, model.arch), reference.weights(), 1e-5, name)


LR, MIN_LR, WARMUP, TOTAL = 3e-3, 1e-3, 3, 10
SHAPES = {
    "constant": lambda progress: LR,
    "linear": lambda progress: MIN_LR + (LR - MIN_LR) * (1 - progress),
    "cosine": lambda progress: MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * progress)),
}


def rates_on_rank(model: TinyModel) -> dict[Any, list[float]]:
    """Learning rates of 14 optimizer steps by (shape, warmup)."""
    rates = {}
    for style in SHAPES:
        for warmup in (0, WARMUP):
            settings = OptimizerSettings(LR, MIN_LR, style, warmup, TOTAL, 0.0, 1.0, 0.9, 0.95, 1e-8, False)
            trainer = Trainer(list(build_model(model.arch, Layout(), torch.float32)), settings)
            trainer.zero_grad()
            rates[style, warmup] = [trainer.step().lr for _ in range(TOTAL + 4)]
    return rates


def test_the_learning_rate_follows_its_closed_form_in_optimizer_steps(models: dict[str, TinyModel]) -> None:
    (rates,) = run_ranks(ranks.TP1, 1, rates_on_rank, models["qwen3"])
    for (style, warmup), ours in rates.items():
        expected = [
            LR * step / warmup if step < warmup else SHAPES[style](min(1.0, (step - warmup) / (TOTAL - warmup)))
            for step in range(TOTAL + 4)
        ]
        assert ours == pytest.approx(expected, rel=1e-9), (style, warmup)
