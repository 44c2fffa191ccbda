"""Training states: written at one layout, continued at another, as if nothing had happened."""

import queue
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from safetensors.torch import load_file

from mindllm.checkpoint import copy_hf_files, model_io, write_checkpoint_info
from mindllm.convert import convert_mcore_to_hf
from mindllm.data.sequences import Sequences
from mindllm.formats.torch_dist import TorchDistReader
from mindllm.models.builder import Layout
from tests.distributed import ranks, shards
from tests.distributed.models import TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import Adam, TorchTrainer, make_batch

TOTAL_STEPS = 4  # of a linear schedule: a resumed run that forgot it would step too far
LAYOUTS = {
    "tp1": (ranks.TP1, 1),
    "tp2": (ranks.TP2, 1),
    "pp2": (ranks.PP2, 1),
    "pp2-vpp2": (ranks.PP2_VPP2, 1),
    "dp2": (ranks.TP1, 2),
    "tp2-pp2": (ranks.TP2_PP2, 1),
}
NAMES = ("qwen3", "qwen2")


def config_of(layout: Layout) -> Any:
    return ranks.actor_config(layout, lr_decay_style="linear", max_tokens_per_micro_batch=64)


def original_on_rank(models: list[TinyModel], batches: list[Sequences], root: Path, layout: Layout) -> list[Any]:
    """Save, step, save, step; the weights after each step."""
    results = []
    for model, batch in zip(models, batches, strict=True):
        config = config_of(layout)
        worker, share = ranks.make_worker(model, config, total_steps=TOTAL_STEPS), ranks.share_of(batch, config)
        worker.save(root / model.name / "iter_0000000")
        worker.update(share, ranks.objective("grpo", batch))
        first = shards.weights(worker.chunks)
        worker.save(root / model.name / "iter_0000001")
        worker.update(share, ranks.objective("sft", batch))
        results.append((first, shards.weights(worker.chunks)))
    return results


def resumed_on_rank(models: list[TinyModel], batches: list[Sequences], root: Path, layout: Layout) -> list[Any]:
    """Weights after the first step from the fresh state, and after the second from the state of the first."""
    results = []
    for model, batch in zip(models, batches, strict=True):
        config, weights = config_of(layout), []
        for saved, kind in (("iter_0000000", "grpo"), ("iter_0000001", "sft")):
            worker = ranks.make_worker(
                model, config, resume=True, checkpoint=root / model.name / saved, total_steps=TOTAL_STEPS
            )
            worker.update(ranks.share_of(batch, config), ranks.objective(kind, batch))
            weights.append(shards.weights(worker.chunks))
        results.append(weights)
    return results


@pytest.fixture(scope="module")
def saved(models: dict[str, TinyModel], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """States written at TP2 x PP2, the weights that run went on to, and those of the reference."""
    root = tmp_path_factory.mktemp("states")
    for name in NAMES:
        for iteration in ("iter_0000000", "iter_0000001"):
            directory = root / name / iteration
            directory.mkdir(parents=True)
            copy_hf_files(models[name].hf_dir, directory / "hf")
            vocab_size = models[name].vocab_size
            write_checkpoint_info(directory, models[name].arch, padded_vocab_size=vocab_size + vocab_size % 2)
    chosen, batches = [models[name] for name in NAMES], [make_batch(models[name]) for name in NAMES]
    answers = run_ranks(ranks.TP2_PP2, 1, original_on_rank, chosen, batches, root, ranks.TP2_PP2)
    expected = []
    for model, batch in zip(chosen, batches, strict=True):
        trainer, steps = TorchTrainer(model, Adam()), []
        for kind, lr in (("grpo", 1e-2), ("sft", 0.75e-2)):
            trainer.backward(kind, batch)
            trainer.step(lr)
            steps.append(trainer.weights())
        expected.append(steps)
    return {"root": root, "models": chosen, "batches": batches, "answers": answers, "expected": expected}


def joined(answers: list[Any], model: int, step: int, arch: Any) -> dict[str, torch.Tensor]:
    return shards.assemble([piece for answer in answers for piece in answer[model][step]], arch)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_state_saved_at_tp2_pp2_continues_at_any_layout(name: str, saved: dict[str, Any]) -> None:
    layout, data_parallel = LAYOUTS[name]
    answers = run_ranks(
        layout, data_parallel, resumed_on_rank, saved["models"], saved["batches"], saved["root"], layout
    )
    for number, model in enumerate(saved["models"]):
        for step in range(2):
            ours = joined(answers, number, step, model.arch)
            what = f"{model.name} at {name}, step {step + 1}"
            shards.assert_equal_tensors(ours, saved["expected"][number][step], 1e-5, what)
            if layout == ranks.TP2_PP2:
                uninterrupted = joined(saved["answers"], number, step, model.arch)
                assert all(torch.equal(ours[key], uninterrupted[key]) for key in ours), f"{what}: not bit for bit"


def test_a_training_state_exports_to_hugging_face_bit_for_bit(saved: dict[str, Any], tmp_path: Path) -> None:
    for number, model in enumerate(saved["models"]):
        exported = convert_mcore_to_hf(saved["root"] / model.name, tmp_path / model.name, iteration=1)
        theirs = load_file(exported / "model.safetensors")
        ours = joined(saved["answers"], number, 0, model.arch)
        assert set(theirs) == set(ours)
        assert all(torch.equal(theirs[key], ours[key]) for key in ours)


CHANGED = Adam(lr=3e-2, weight_decay=0.3, clip_grad=2.0, beta1=0.7, beta2=0.8, eps=2e-2)


def resumed_with_other_settings_on_rank(model: TinyModel, batch: Sequences, directory: Path, layout: Layout) -> Any:
    config = ranks.actor_config(layout, CHANGED, lr_decay_style="linear", max_tokens_per_micro_batch=64)
    worker = ranks.make_worker(model, config, resume=True, checkpoint=directory, total_steps=TOTAL_STEPS)
    worker.update(ranks.share_of(batch, config), ranks.objective("sft", batch))
    return shards.weights(worker.chunks)


@pytest.mark.parametrize("name", ["dp2", "pp2"])
def test_a_resumed_run_steps_with_the_settings_it_is_given_now(name: str, saved: dict[str, Any]) -> None:
    layout, data_parallel = LAYOUTS[name]
    model, batch = saved["models"][1], saved["batches"][1]
    directory = saved["root"] / model.name / "iter_0000001"
    answers = run_ranks(layout, data_parallel, resumed_with_other_settings_on_rank, model, batch, directory, layout)
    reference = TorchTrainer(model, Adam())
    reference.backward("grpo", batch)
    reference.step()
    reference.adopt(CHANGED)
    reference.backward("sft", batch)
    reference.step(0.75 * CHANGED.lr)
    ours = shards.assemble([piece for answer in answers for piece in answer], model.arch)
    shards.assert_equal_tensors(ours, reference.weights(), 1e-5, name)


def saved_by_megatron_too_on_rank(model: TinyModel, batch: Sequences, ours: Path, theirs: Path, config: Any) -> None:
    """One step, and the state written by this toolkit and by unedited megatron-core."""
    worker = ranks.make_worker(model, config, total_steps=TOTAL_STEPS)
    worker.update(ranks.share_of(batch, config), ranks.objective("sft", batch))
    worker.save(ours)
    changed = DistributedOptimizer.sharded_param_state_fully_reshardable
    DistributedOptimizer.sharded_param_state_fully_reshardable = changed.__wrapped__
    filesystem_async._results_queue = queue.Queue()  # or megatron starts a process to own one
    weights = model_io._model_state(worker.trainer.chunks)
    optimizer = worker.trainer.optimizer.sharded_state_dict(
        model_io._chunks_in_one(weights, len(worker.trainer.chunks)), metadata=dict(model_io._SHARDING)
    )
    dist_checkpointing.save({**weights, "optimizer": optimizer}, str(theirs))
    dist.barrier()


@pytest.mark.parametrize(("name", "bf16"), [("tp1", False), ("dp2", True), ("pp2-vpp2", False)])
def test_a_training_state_holds_what_megatron_itself_would_write(
    name: str, bf16: bool, models: dict[str, TinyModel], tmp_path: Path
) -> None:
    layout, data_parallel = LAYOUTS[name]
    config, model = ranks.actor_config(layout, max_tokens_per_micro_batch=64, bf16=bf16), models["qwen2"]
    directories = [tmp_path / "ours", tmp_path / "theirs"]
    for directory in directories:
        directory.mkdir()
    run_ranks(layout, data_parallel, saved_by_megatron_too_on_rank, model, make_batch(model), *directories, config)
    with TorchDistReader(directories[0]) as ours, TorchDistReader(directories[1]) as theirs:
        assert ours.keys() == theirs.keys()
        assert any(key.startswith("optimizer.state.exp_avg_sq.") for key in ours.keys())
        for key in ours.keys():
            assert ours.dtype(key) == theirs.dtype(key), key
            assert np.array_equal(ours.read(key), theirs.read(key)), key
