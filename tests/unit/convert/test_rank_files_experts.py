"""Rank files of mixtures of experts and of latent attention: megatron-core's own models, and its other ways to save."""

from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
from megatron.core import parallel_state as mpu

from mindllm.checkpoint import latest_iteration_dir
from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.models.builder import Layout
from mindllm.models.families import load_architecture
from tests.distributed.pool import run_ranks
from tests.unit.convert.reference_gpt import load_reference
from tests.unit.convert.tiny_models import assert_same_tensors, make_hf_model, read_all

# A local layer's norms, and their names once fused into the linear layer that follows.
FUSED = {
    "input_layernorm.weight": "self_attention.linear_qkv",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1",
    "self_attention.q_layernorm.weight": "self_attention.linear_q_up_proj",
    "self_attention.kv_layernorm.weight": "self_attention.linear_kv_up_proj",
}
State = dict[str, Any]


def with_fused_norms(state: State) -> State:
    """Return a local model's state under Transformer Engine's names."""
    result = {}
    for key, value in state.items():
        for norm, linear in FUSED.items():
            before = key.removesuffix(norm)
            if before != key and f"{before}{linear}.weight" in state:
                key = f"{before}{linear}.layer_norm_weight"
        result[key] = value
    return result


def _states(hf: Path, directory: Path, layout: Layout, expert: int) -> tuple[str, dict[str, State]]:
    """Return this rank's directory name, and the states of megatron-core's model chunks filled from ``directory``."""
    mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(
        layout.tensor, layout.pipeline, layout.virtual_pipeline, expert_model_parallel_size=expert
    )
    chunks = load_reference(load_architecture(hf), directory)
    names = ["model"] if len(chunks) == 1 else [f"model{number}" for number in range(len(chunks))]
    states = {name: dict(chunk.state_dict()) for name, chunk in zip(names, chunks, strict=True)}
    name = f"mp_rank_{mpu.get_tensor_model_parallel_rank():02d}"
    name += f"_{mpu.get_pipeline_model_parallel_rank():03d}" if layout.pipeline > 1 else ""
    name += f"_{mpu.get_expert_model_parallel_rank():03d}" if expert > 1 else ""
    return name, states


LAYOUTS = {
    "tp2ep2": (Layout(tensor=2), 2),
    "pp2ep2": (Layout(pipeline=2), 2),
    "pp2vpp2": (Layout(pipeline=2, virtual_pipeline=2), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3"])
def test_files_hold_exactly_the_state_of_the_model_megatron_builds(tmp_path: Path, family: str, layout: str) -> None:
    hf = make_hf_model(tmp_path / "hf", family, vocab_size=104)
    sizes, expert = LAYOUTS[layout]
    reference = convert_hf_to_mcore(hf, tmp_path / "dist")
    written = convert_hf_to_mcore(
        hf,
        tmp_path / "ranks",
        ckpt_format="torch",
        tensor_parallel_size=sizes.tensor,
        pipeline_parallel_size=sizes.pipeline,
        expert_parallel_size=expert,
        num_layers_per_virtual_pipeline_stage=1 if sizes.virtual_pipeline else None,
    )
    ranks = dict(run_ranks(sizes, expert, _states, hf, reference, sizes, expert))
    assert {path.name for path in written.glob("mp_rank_*")} == ranks.keys()
    for name, chunks in ranks.items():
        written_chunks = torch.load(written / name / "model_optim_rng.pt", weights_only=True)
        assert {key for key in written_chunks if key.startswith("model")} == chunks.keys()
        for chunk, state in chunks.items():
            ours, theirs = written_chunks[chunk], with_fused_norms(state)
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                # Transformer Engine's down projections are whole on every rank, the local ones are cut.
                if key.endswith("_down_proj.weight") and sizes.tensor > 1:
                    value = torch.cat([ranks[rank][chunk][key] for rank in sorted(ranks) if rank[10:] == name[10:]])
                assert value is None if ours[key] is None else torch.equal(ours[key], value), key


def grouped(state: State, num_local: int) -> State:
    """Return ``state`` as ``GroupedMLP`` keeps it: [experts, inputs, outputs], given a shape of two axes."""
    result = {key: value for key, value in state.items() if "local_experts" not in key}
    for experts in sorted({key.partition("local_experts")[0] for key in state if "local_experts" in key}):
        for number in "12":
            names = [f"{experts}local_experts.{expert}.linear_fc{number}.weight" for expert in range(num_local)]
            blocks = torch.stack([state[name].T for name in names])
            hidden = blocks.shape[1] if number == "1" else blocks.shape[2]
            result[f"{experts}weight{number}"] = blocks.view(hidden, -1) if number == "1" else blocks.view(-1, hidden)
    return result


def numbered(state: State, num_local: int) -> State:
    """Return ``state`` as ``TEGroupedMLP`` keeps it."""
    result = {key: value for key, value in state.items() if "local_experts" not in key}
    for key, value in state.items():
        if "local_experts" in key and key.endswith(".weight"):
            experts, _, rest = key.partition("local_experts.")
            expert, linear, _ = rest.split(".")
            result[f"{experts}{linear}.weight{expert}"] = value
            result[f"{experts}{linear}._extra_state"] = None
    return result


def local_norms(state: State, num_local: int) -> State:
    """Return ``state`` under the names of local layers, which do not fuse norms."""
    result = {}
    for key, value in state.items():
        for norm, linear in FUSED.items():
            key = key.replace(f"{linear}.layer_norm_weight", norm)
        result[key] = value
    return result


def test_the_plan_counts_every_copy(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "deepseek_v2", vocab_size=104)
    layout = {"ckpt_format": "torch", "tensor_parallel_size": 2, "expert_parallel_size": 4}
    plan: list[str] = []
    written = convert_hf_to_mcore(hf, tmp_path / "ranks", report=plan.append, **layout)
    states = [torch.load(path, weights_only=True)["model"] for path in written.glob("mp_rank_*/model_optim_rng.pt")]
    stored = sum(tensor.nbytes for state in states for tensor in state.values() if tensor is not None)
    assert f" tensors, {stored / 2**20:,.1f} MiB from " in plan[0]


@pytest.mark.parametrize("rewrite", [grouped, numbered, local_norms])
@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "deepseek_v3", "qwen2"])
def test_other_modules_of_megatron_are_read_too(tmp_path: Path, family: str, rewrite: Any) -> None:
    hf = make_hf_model(tmp_path / "hf", family)
    expert = 1 if family == "qwen2" else 2
    layout = {"ckpt_format": "torch", "tensor_parallel_size": 2, "expert_parallel_size": expert}
    convert_hf_to_mcore(hf, tmp_path / "ranks", **layout)
    for path in latest_iteration_dir(tmp_path / "ranks").glob("mp_rank_*/model_optim_rng.pt"):
        state = torch.load(path, weights_only=True)
        torch.save({**state, "model": rewrite(state["model"], 8 // expert)}, path)
    back = convert_mcore_to_hf(tmp_path / "ranks", tmp_path / "back", verify=True)
    assert_same_tensors(read_all(hf), read_all(back))
