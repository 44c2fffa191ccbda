"""Converted checkpoints against megatron-core itself: its models' keys, its loader, its saver, at several layouts."""

import dataclasses
import queue
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.dist_checkpointing.strategies import filesystem_async

from mindllm.checkpoint import copy_hf_files, latest_iteration_dir, read_checkpoint_info, write_checkpoint_info
from mindllm.checkpoint.info import iteration_dir
from mindllm.checkpoint.model_io import load_model, load_training_state, save_training_state
from mindllm.convert import Options, convert, convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.errors import UserError
from mindllm.formats.arrays import name_of, same_bits
from mindllm.formats.torch_dist import TorchDistReader
from mindllm.models.builder import Layout, build_model
from mindllm.models.families import load_architecture
from mindllm.parallel.optimizer import OptimizerSettings, Trainer
from tests.distributed.pool import run_ranks
from tests.unit.convert.tiny_models import assert_same_tensors, make_hf_model, read_all

CASES = [("llama", False, torch.float32), ("qwen2", False, torch.float32), ("qwen3", True, torch.bfloat16)]


def _build(hf: Path, layout: Layout) -> list[Any]:
    architecture = load_architecture(hf)
    dtype = getattr(torch, architecture.dtype)
    return build_model(architecture, layout, dtype)


def _state(chunks: list[Any]) -> dict[str, Any]:
    return {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(chunks)}


def _load(hf: Path, layout: Layout, directory: Path) -> list[Any]:
    """Build the model on this rank, spoil its weights and let megatron-core load the checkpoint."""
    chunks = _build(hf, layout)
    for chunk in chunks:
        for parameter in chunk.parameters():
            parameter.data.fill_(torch.nan)
    loaded = dist_checkpointing.load(_state(chunks), str(directory))
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[f"model{number}"])
        assert all(parameter.isfinite().all() for parameter in chunk.parameters())
    return chunks


def _described(hf: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return key -> (global shape, dtype) of the model that megatron-core builds at TP1."""
    (chunk,) = _build(hf, Layout())
    state = chunk.sharded_state_dict()
    apply_factories(state)
    tensors = [value for value in nested_values(state) if isinstance(value, ShardedTensor)]
    return {tensor.key: (tuple(tensor.global_shape), str(tensor.dtype)) for tensor in tensors}


def _load_and_save(hf: Path, layout: Layout, source: Path, target: Path) -> None:
    chunks = _load(hf, layout, source)
    if torch.distributed.get_rank() == 0:
        target.mkdir(parents=True)
    torch.distributed.barrier()
    filesystem_async._results_queue = queue.Queue()  # or megatron starts a process to own one
    dist_checkpointing.save(_state(chunks), str(target))


@pytest.mark.parametrize(("family", "tied", "dtype"), CASES, ids=[case[0] for case in CASES])
def test_keys_and_shapes_are_those_of_a_megatron_model(
    tmp_path: Path, family: str, tied: bool, dtype: torch.dtype
) -> None:
    hf = make_hf_model(tmp_path / "hf", family, tied, dtype)
    directory = convert_hf_to_mcore(hf, tmp_path / "mcore")
    with TorchDistReader(directory) as reader:
        ours = {key: (reader.shape(key), f"torch.{name_of(reader.dtype(key))}") for key in reader.keys()}
    assert ours == run_ranks(Layout(), 1, _described, hf)[0]


@pytest.mark.parametrize(
    ("family", "tied", "layout", "divisible_by"),
    [
        ("qwen3", True, Layout(tensor=2, pipeline=2), 1),
        ("qwen2", False, Layout(tensor=2), 128),
        ("llama", False, Layout(pipeline=2, virtual_pipeline=2), 1),
        ("qwen2", False, Layout(), 1),
    ],
    ids=["qwen3-tp2pp2", "qwen2-tp2-padded", "llama-pp2vpp2", "qwen2-tp1"],
)
def test_what_megatron_loads_and_saves_again_exports_to_the_same_bits(
    tmp_path: Path, family: str, tied: bool, layout: Layout, divisible_by: int
) -> None:
    hf = make_hf_model(tmp_path / "hf", family, tied)
    source = convert_hf_to_mcore(hf, tmp_path / "mcore", make_vocab_size_divisible_by=divisible_by)
    target = iteration_dir(tmp_path / "again", 9)
    run_ranks(layout, 1, _load_and_save, hf, layout, source, target)
    copy_hf_files(source / "hf", target / "hf")
    write_checkpoint_info(target, read_checkpoint_info(source).architecture)
    (tmp_path / "again" / "latest_checkpointed_iteration.txt").write_text("9\n")
    assert latest_iteration_dir(tmp_path / "again") == target

    back = convert_mcore_to_hf(tmp_path / "again", tmp_path / "back")
    assert_same_tensors(read_all(hf), read_all(back))


def _trainer(hf: Path, layout: Layout) -> Trainer:
    settings = OptimizerSettings(
        lr=1e-3,
        min_lr=0.0,
        decay_style="constant",
        warmup_steps=0,
        decay_steps=1,
        weight_decay=0.0,
        clip_grad=1.0,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_eps=1e-8,
        distributed=True,
    )
    return Trainer(_build(hf, layout), settings)


def _make_and_save(trainer: Trainer, target: Path) -> None:
    if torch.distributed.get_rank() == 0:
        target.mkdir(parents=True)
    torch.distributed.barrier()
    save_training_state(trainer, target)


def _train_and_save(hf: Path, layout: Layout, source: Path, target: Path, num_steps: int) -> None:
    trainer = _trainer(hf, layout)
    load_model(trainer.chunks, source)
    for _ in range(num_steps):
        trainer.zero_grad()
        for chunk in trainer.chunks:
            for parameter in chunk.parameters():  # the same on all ranks that hold the same part
                parameter.main_grad.copy_(parameter.detach() * 0.1 + 0.01)
        assert not trainer.step().skipped
    _make_and_save(trainer, target)


def _resume_and_save(hf: Path, layout: Layout, directory: Path, target: Path) -> int:
    """Let megatron-core restore model and optimizer and save them again; return the steps done."""
    trainer = _trainer(hf, layout)
    load_training_state(trainer, directory)
    _make_and_save(trainer, target)
    return trainer.steps_done


def test_a_trained_checkpoint_keeps_its_optimizer_when_asked(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen3", tied=True, vocab_size=104)
    source = convert_hf_to_mcore(hf, tmp_path / "mcore")
    target = iteration_dir(tmp_path / "trained", 2)
    run_ranks(Layout(tensor=2), 1, _train_and_save, hf, Layout(tensor=2), source, target, 2)
    copy_hf_files(source / "hf", target / "hf")
    write_checkpoint_info(target, read_checkpoint_info(source).architecture)
    options = Options("mcore", "mcore", iteration=2, with_optimizer=True, workers=2)
    kept = convert(tmp_path / "trained", tmp_path / "kept", options)
    layout, again = Layout(pipeline=2), tmp_path / "again"
    assert run_ranks(layout, 1, _resume_and_save, hf, layout, kept, again) == [2, 2]
    with TorchDistReader(target) as before, TorchDistReader(kept) as after, TorchDistReader(again) as resumed:
        assert before.keys() == after.keys() == resumed.keys()
        assert all(same_bits(before.read(key), after.read(key)) for key in after.keys())
        assert all(same_bits(before.read(key), resumed.read(key)) for key in after.keys())
        for moment in ("exp_avg", "exp_avg_sq"):
            keys = [key for key in after.keys() if f".{moment}." in key]
            assert len(keys) > 5 and all(after.read(key).any() for key in keys)
    with pytest.raises(UserError, match="--with-optimizer keeps the state of the same parameters"):
        convert(tmp_path / "trained", tmp_path / "x", dataclasses.replace(options, head="reward"))


def test_a_trained_checkpoint_exports_without_its_optimizer(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen3", tied=True)
    source = convert_hf_to_mcore(hf, tmp_path / "mcore")
    target = iteration_dir(tmp_path / "trained", 2)
    layout = Layout(tensor=2, pipeline=2)
    run_ranks(layout, 1, _train_and_save, hf, layout, source, target, 0)
    copy_hf_files(source / "hf", target / "hf")
    write_checkpoint_info(target, read_checkpoint_info(source).architecture)
    with TorchDistReader(target) as reader:
        assert any(key.startswith("optimizer.") for key in reader.keys())
    back = convert_mcore_to_hf(tmp_path / "trained", tmp_path / "back", iteration=2)
    assert_same_tensors(read_all(hf), read_all(back))
