"""Megatron's ``torch`` format, one file per rank: against the models that megatron-core builds, and read back."""

import shutil
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
from megatron.core import parallel_state as mpu

from mindllm.checkpoint import latest_iteration_dir
from mindllm.checkpoint.model_io import load_model
from mindllm.convert import Options, convert, convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.cli import main
from mindllm.convert.endpoints.rank_layout import plan_stages
from mindllm.errors import UserError
from mindllm.models.builder import Layout, build_model
from mindllm.models.families import load_architecture
from tests.distributed.pool import run_ranks
from tests.unit.convert.tiny_models import assert_same_tensors, make_hf_model, read_all

TE_NAMES = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}


def _state_dicts(hf: Path, layout: Layout, directory: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return this rank's directory name, and chunk -> state of the model that loaded the torch_dist checkpoint."""
    architecture = load_architecture(hf)
    chunks = build_model(architecture, layout, getattr(torch, architecture.dtype))
    load_model(chunks, directory)
    states = {}
    for number, chunk in enumerate(chunks):
        state = dict(chunk.state_dict())
        for ours, theirs in TE_NAMES.items():
            state = {key.replace(ours, theirs): value for key, value in state.items()}
        states["model" if len(chunks) == 1 else f"model{number}"] = state
    tensor, pipeline = mpu.get_tensor_model_parallel_rank(), mpu.get_pipeline_model_parallel_rank()
    return f"mp_rank_{tensor:02d}" + (f"_{pipeline:03d}" if layout.pipeline > 1 else ""), states


@pytest.mark.parametrize(
    ("family", "tied", "layout"),
    [
        ("qwen2", False, Layout(tensor=2)),
        ("qwen2", True, Layout(pipeline=2)),
        ("qwen3", True, Layout(tensor=2, pipeline=2)),
        ("llama", False, Layout(pipeline=2, virtual_pipeline=2)),
        ("llama", False, Layout(tensor=4)),  # more ranks than query groups
    ],
    ids=["tp2", "pp2-tied", "tp2pp2-tied", "pp2vpp2", "tp4"],
)
def test_files_hold_exactly_the_state_of_the_model_megatron_builds(
    tmp_path: Path, family: str, tied: bool, layout: Layout
) -> None:
    hf = make_hf_model(tmp_path / "hf", family, tied)
    reference = convert_hf_to_mcore(hf, tmp_path / "dist")
    written = convert_hf_to_mcore(
        hf,
        tmp_path / "ranks",
        ckpt_format="torch",
        tensor_parallel_size=layout.tensor,
        pipeline_parallel_size=layout.pipeline,
        num_layers_per_virtual_pipeline_stage=1 if layout.virtual_pipeline else None,
        verify=True,
    )
    ranks = run_ranks(layout, 1, _state_dicts, hf, layout, reference)
    assert {path.name for path in written.glob("mp_rank_*")} == {name for name, _ in ranks}
    for name, states in ranks:
        ours = torch.load(written / name / "model_optim_rng.pt", weights_only=True)
        assert ours["checkpoint_version"] == 3.0 and ours["iteration"] == 1
        assert {key for key in ours if key.startswith("model")} == states.keys()
        for chunk, state in states.items():
            assert ours[chunk].keys() == state.keys()
            for key, value in state.items():
                assert value is None if ours[chunk][key] is None else torch.equal(ours[chunk][key], value), key


def test_formats_and_layouts_convert_into_each_other(hf_qwen2: Path, mcore_qwen2: Path, tmp_path: Path) -> None:
    ranks = {"ckpt_format": "torch", "tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    convert(mcore_qwen2, tmp_path / "a", Options("mcore", "mcore", **ranks, verify=True))
    other = {"ckpt_format": "torch", "pipeline_parallel_size": 3, "num_layer_list": (2, 1, 1)}
    convert(tmp_path / "a", tmp_path / "b", Options("mcore", "mcore", **other, verify=True))
    convert(tmp_path / "b", tmp_path / "c", Options("mcore", "mcore", verify=True))
    for name in "abc":
        convert_mcore_to_hf(tmp_path / name, tmp_path / f"{name}-hf")
        assert_same_tensors(read_all(hf_qwen2), read_all(tmp_path / f"{name}-hf"))


def test_a_file_that_megatron_saved_is_read_past_its_arguments_and_random_states(
    hf_qwen2: Path, mcore_qwen2: Path, tmp_path: Path
) -> None:
    import argparse

    import numpy

    convert(mcore_qwen2, tmp_path / "a", Options("mcore", "mcore", ckpt_format="torch"))
    path = latest_iteration_dir(tmp_path / "a") / "mp_rank_00" / "model_optim_rng.pt"
    state = torch.load(path, weights_only=True)
    state["args"] = argparse.Namespace(params_dtype=torch.bfloat16, seed=1, load=tmp_path)
    for key in [key for key in state["model"] if key.endswith("linear_qkv.weight")]:
        state["model"][key] = torch.nn.Parameter(state["model"][key])
        state["model"][key].tensor_model_parallel = True
    state["rng_state"] = [{"np_rng_state": numpy.random.get_state(), "torch_rng_state": torch.get_rng_state()}]
    state["optimizer"] = {"exp_avg": torch.ones(3)}
    torch.save(state, path)
    convert_mcore_to_hf(tmp_path / "a", tmp_path / "back", verify=True)
    assert_same_tensors(read_all(hf_qwen2), read_all(tmp_path / "back"))


@pytest.mark.parametrize("ckpt_format", ["torch", "torch_dist"])
def test_a_checkpoint_without_a_config_beside_it_takes_one_that_is_named(
    hf_qwen2: Path, tmp_path: Path, ckpt_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    written = convert_hf_to_mcore(hf_qwen2, tmp_path / "a", ckpt_format=ckpt_format, make_vocab_size_divisible_by=128)
    arguments = ["--load-model-type", "mcore", "--save-model-type", "hf", "--load-dir", str(tmp_path / "a")]
    arguments += ["--save-dir", str(tmp_path / "back")]
    named = ["--hf-dir", str(hf_qwen2)]
    assert main([*arguments, *named]) == 2
    assert "has a config.json of its own; leave out --hf-dir" in capfd.readouterr().err
    (written / "mindllm.json").unlink()
    shutil.rmtree(written / "hf")
    assert main(arguments) == 2
    assert "name a Hugging Face directory with its config.json and tokenizer by --hf-dir" in capfd.readouterr().err
    assert main([*arguments, *named, "--verify"]) == 0
    assert_same_tensors(read_all(hf_qwen2), read_all(tmp_path / "back"))
    assert (tmp_path / "back" / "tokenizer.json").exists()


@pytest.fixture
def ranks(mcore_qwen2: Path, tmp_path: Path) -> Path:
    """A checkpoint of four rank files that a test may spoil."""
    layout = {"ckpt_format": "torch", "tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    convert(mcore_qwen2, tmp_path / "ranks", Options("mcore", "mcore", **layout))
    return tmp_path / "ranks"


def refused(ranks: Path) -> str:
    with pytest.raises(UserError) as error:
        convert_mcore_to_hf(ranks, ranks.parent / "back")
    assert not list(ranks.parent.glob("back*"))
    return str(error.value)


def test_a_missing_rank_is_refused(ranks: Path) -> None:
    shutil.rmtree(latest_iteration_dir(ranks) / "mp_rank_01_001")
    assert "1 of the files of [2, 2, 1] tensor, pipeline and expert ranks are missing" in refused(ranks)


def test_a_truncated_file_is_refused(ranks: Path) -> None:
    path = latest_iteration_dir(ranks) / "mp_rank_01_001" / "model_optim_rng.pt"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path} is refused" in refused(ranks)


def test_a_file_that_lacks_bytes_in_its_middle_is_refused(ranks: Path) -> None:
    path = latest_iteration_dir(ranks) / "mp_rank_01_001" / "model_optim_rng.pt"
    content = path.read_bytes()
    path.write_bytes(content[:5000] + content[9000:])
    assert f"{path} is refused: bytes are missing from it" in refused(ranks)


@pytest.mark.parametrize("content", [[1, 2], {"model": {1: torch.zeros(2)}}, {"model": [torch.zeros(2)]}, {}])
def test_a_file_of_something_else_is_refused(ranks: Path, content: Any) -> None:
    path = latest_iteration_dir(ranks) / "mp_rank_01_001" / "model_optim_rng.pt"
    torch.save(content, path)
    assert f"{path} is refused: it holds no model" in refused(ranks)


def test_more_than_ten_chunks_of_a_rank_are_read_in_their_order(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen2", num_hidden_layers=24)
    layout = {"ckpt_format": "torch", "pipeline_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1}
    convert_hf_to_mcore(hf, tmp_path / "ranks", **layout)
    assert_same_tensors(read_all(hf), read_all(convert_mcore_to_hf(tmp_path / "ranks", tmp_path / "back")))


def test_missing_left_over_and_misshapen_tensors_are_named(ranks: Path) -> None:
    path = latest_iteration_dir(ranks) / "mp_rank_01_000" / "model_optim_rng.pt"
    original = torch.load(path, weights_only=True)
    key, copied = "decoder.layers.1.mlp.linear_fc2.weight", "decoder.layers.1.mlp.linear_fc1.layer_norm_weight"
    for change, said in (
        ({key: None}, f"lacks tensors that hf/config.json implies: {key}"),
        ({"extra": torch.ones(1)}, "has tensors that hf/config.json does not imply: extra"),
        ({key: torch.ones(64, 5)}, f"{path}: {key} is float32 (64, 5), but {key} in "),
        ({key: torch.tensor(1.0)}, f"{path}: {key} is float32 (), but {key} in "),
        ({key: original["model"][key].bfloat16()}, f"{path}: {key} is bfloat16 (64, 48), but {key} in "),
        ({key: original["model"][key].to(torch.int16)}, f"{path}: {key} is int16; weights of fp32, bf16 and fp16 can"),
        ({copied: torch.ones(5)}, f"{path}: {copied} is float32 (5,), but {copied} in "),
    ):
        torch.save({**original, "model": {**original["model"], **change}}, path)
        assert said in refused(ranks)


def test_parts_that_together_are_another_tensor_are_named(ranks: Path) -> None:
    key = "decoder.layers.1.mlp.linear_fc2.weight"
    for number in range(2):
        path = latest_iteration_dir(ranks) / f"mp_rank_0{number}_000" / "model_optim_rng.pt"
        state = torch.load(path, weights_only=True)
        torch.save({**state, "model": {**state["model"], key: torch.ones(64, 5)}}, path)
    assert "has shape (64, 10); hf/config.json implies (64, 96)" in refused(ranks)


def test_a_pickle_that_would_run_code_is_refused_before_it_does(ranks: Path, tmp_path: Path) -> None:
    from tests.unit.formats.test_torch_dist import Malicious

    path = latest_iteration_dir(ranks) / "mp_rank_00_000" / "model_optim_rng.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "args": Malicious(tmp_path / "executed")}, path)
    assert "is refused: it refers to posix.mkdir, which is not allowed there" in refused(ranks)
    assert not (tmp_path / "executed").exists()


def test_layers_go_round_the_ranks_under_a_virtual_pipeline() -> None:
    assert plan_stages(8, 2, 2, None) == (((0, 1), (4, 5)), ((2, 3), (6, 7)))
    assert plan_stages(8, 2, None, (5, 3)) == (((0, 1, 2, 3, 4),), ((5, 6, 7),))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target-pipeline-parallel-size", "2", "--num-layer-list", "1,2"], "num-layer-list 1,2 has 2 stages and 3"),
        (["--num-layer-list", "2,2"], "target-pipeline-parallel-size is 1"),
        (["--num-layers-per-virtual-pipeline-stage", "3"], "3 does not divide the 4 layers"),
        (["--num-layers-per-virtual-pipeline-stage", "2"], "needs target-pipeline-parallel-size of at least 2"),
        (["--target-expert-parallel-size", "2"], "target-expert-parallel-size 2 does not divide experts 1"),
        (["--target-tensor-parallel-size", "8"], "8 does not divide num_attention_heads 4"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(
    hf_qwen2: Path, tmp_path: Path, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    types = ["--load-model-type", "hf", "--save-model-type", "mcore", "--ckpt-format", "torch"]
    paths = ["--load-dir", str(hf_qwen2), "--save-dir", str(tmp_path / "result")]
    assert main([*types, *paths, *arguments]) == 2
    assert said in capfd.readouterr().err
    assert main([*types[:-2], *paths, "--num-layer-list", "4"]) == 2
    assert "--num-layer-list has no effect with --ckpt-format torch_dist" in capfd.readouterr().err
