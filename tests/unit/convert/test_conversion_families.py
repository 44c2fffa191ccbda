"""Every family: the logits of megatron-core's model, and what is particular to some."""

import json
from pathlib import Path
from typing import Any

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import pytest
import torch
from transformers import AutoModelForCausalLM

from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.errors import UserError
from mindllm.models.builder import Layout
from mindllm.models.families import load_architecture, unsupported_for_training
from mindllm.models.families.registry import FAMILIES
from tests.distributed.pool import run_ranks
from tests.unit.convert.hand_written import CONFIGS, baichuan_logits, internlm2_logits, make_hand_written
from tests.unit.convert.reference_gpt import reference_logits
from tests.unit.convert.tiny_models import (
    FAMILY_VALUES,
    YARN_ROPE,
    assert_same_tensors,
    edit_config,
    edit_tensors,
    load_hf,
    make_hf_model,
    read_all,
)

MODELS = [*FAMILY_VALUES, *CONFIGS]
MOE = ("qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3")
HAND_WRITTEN = {"internlm2": internlm2_logits, "baichuan": baichuan_logits}


def make(directory: Path, name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    if name in CONFIGS:
        return make_hand_written(directory, name, dtype, **options)
    return make_hf_model(directory, name, dtype=dtype, **options)


def test_every_family_is_tested() -> None:
    assert {name.split("-")[0] for name in MODELS} == set(FAMILIES)


@pytest.mark.parametrize("name", MOE)
def test_experts_are_divided_among_expert_parallel_ranks(tmp_path: Path, name: str) -> None:
    hf = make(tmp_path / "hf", name)
    layout = {"expert_parallel_size": 2, "tensor_parallel_size": 2}
    written = convert_hf_to_mcore(hf, tmp_path / "mcore", ckpt_format="torch", **layout)
    assert len(list(written.glob("mp_rank_??_???"))) == 4
    assert_same_tensors(read_all(hf), read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in CONFIGS])
def test_transformers_loads_the_export_without_missing_or_unexpected_keys(tmp_path: Path, name: str) -> None:
    hf = make(tmp_path / "hf", name)
    convert_hf_to_mcore(hf, tmp_path / "mcore")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
    _, report = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


GROUPS = {"n_group": 4, "topk_group": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in MODELS if name != "baichuan-13b"},
    "qwen2_moe-all": ("qwen2_moe", {"decoder_sparse_step": 1, "norm_topk_prob": True}),
    "qwen3_moe-unnormalised": ("qwen3_moe", {"norm_topk_prob": False}),
    "phi3-partial": ("phi3", {"partial_rotary_factor": 0.5}),
    "baichuan-raw": ("baichuan", {"unit_rows": False}),
    "deepseek_v2-lite": ("deepseek_v2", {"q_lora_rank": None}),
    "deepseek_v2-groups": ("deepseek_v2", {"topk_method": "group_limited_greedy", **GROUPS, "num_experts_per_tok": 2}),
    "deepseek_v3-yarn": ("deepseek_v3", {"rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.8}}),
}


def shrink(hf: Path) -> None:
    """Scale the matrices down, so that the rounding of fp32 is small beside 1e-4."""
    inner = {name: tensor for name, tensor in read_all(hf).items() if tensor.dim() > 1 and "lm_head" not in name}
    edit_tensors(hf, {name: tensor * 0.15 for name, tensor in inner.items()})


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_converted_model_has_the_logits_of_the_original(tmp_path: Path, variant: str) -> None:
    name, options = VARIANTS[variant]
    hf = make(tmp_path / "hf", name, **options)
    shrink(hf)
    converted = convert_hf_to_mcore(hf, tmp_path / "mcore")
    tokens = torch.randint(0, 101, (2, 40), generator=torch.Generator().manual_seed(5))
    if name in HAND_WRITTEN:
        expected = HAND_WRITTEN[name](read_all(hf), tokens)
    else:
        with torch.no_grad():
            expected = load_hf(hf)(tokens).logits
    architecture = load_architecture(hf)
    (ours,) = run_ranks(Layout(), 1, reference_logits, architecture, converted, tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_trained_is_said_in_a_sentence(tmp_path: Path) -> None:
    said = {name: unsupported_for_training(load_architecture(make(tmp_path / name, name))) for name in MODELS}
    trainable = {name for name, sentence in said.items() if sentence is None}
    assert trainable == {"llama", "mistral", "qwen2", "qwen3", "phi3", "seed_oss", "internlm2", "baichuan"}
    assert said["baichuan-13b"] == "a model of family 'baichuan' with ALiBi positions can be converted but not trained"
    assert "multi-head latent attention and a mixture of experts and YaRN" in str(said["deepseek_v2"])


def test_groups_that_megatron_chooses_otherwise_are_named(tmp_path: Path) -> None:
    """DeepSeek-V2 takes a group's best score, megatron-core as many as there are experts to choose per group."""
    changes = {"topk_method": "group_limited_greedy", **GROUPS, "num_experts_per_tok": 4}
    foreign, same, ungrouped = (tmp_path / name for name in ("foreign", "same", "ungrouped"))
    make(foreign, "deepseek_v2", **changes)
    make(same, "deepseek_v2", **{**changes, "num_experts_per_tok": 2})
    make(ungrouped, "deepseek_v2")
    named = "groups that count by another number of scores"
    assert named in str(unsupported_for_training(load_architecture(foreign)))
    assert named not in str(unsupported_for_training(load_architecture(same)))
    assert named not in str(unsupported_for_training(load_architecture(ungrouped)))


def test_fp8_weights_become_what_their_block_scales_say(tmp_path: Path) -> None:
    hf = make(tmp_path / "hf", "deepseek_v3", torch.bfloat16)
    expected, quantised = {}, {}
    generator = torch.Generator().manual_seed(3)
    for name, tensor in read_all(hf).items():
        expected[name] = tensor
        if "_proj" in name:
            rows, columns = (-(-size // 16) for size in tensor.shape)
            scale = torch.rand(rows, columns, generator=generator) + 0.5
            low = tensor.to(torch.float8_e4m3fn)
            quantised |= {name: low, name + "_scale_inv": scale}
            wide = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)[: tensor.shape[0], : tensor.shape[1]]
            expected[name] = (low.float() * wide).bfloat16()
    edit_tensors(hf, quantised)
    edit_config(hf, quantization_config={"quant_method": "fp8", "weight_block_size": [16, 16], "fmt": "e4m3"})
    convert_hf_to_mcore(hf, tmp_path / "mcore", verify=True)
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", verify=True)
    assert_same_tensors(expected, read_all(back))
    assert "quantization_config" not in json.loads((back / "config.json").read_text())

    edit_tensors(hf, {"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(2, 2)})
    with pytest.raises(UserError, match=r"up_proj.weight is fp8 in blocks of \(16, 16\); its _scale_inv has shape"):
        convert_hf_to_mcore(hf, tmp_path / "other")


def test_layers_that_predict_further_tokens_are_left_out_of_deepseek_v3_only(tmp_path: Path) -> None:
    hf = make(tmp_path / "hf", "deepseek_v3")
    edit_config(hf, num_nextn_predict_layers=1)
    tensors = read_all(hf)
    edit_tensors(hf, {"model.layers.4.eh_proj.weight": torch.ones(3, 3)})
    convert_hf_to_mcore(hf, tmp_path / "mcore")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
    assert_same_tensors(tensors, read_all(back))
    assert json.loads((back / "config.json").read_text())["num_nextn_predict_layers"] == 0
    _, report = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_a_normalised_output_layer_stays_as_it_is_when_normalised_again(tmp_path: Path) -> None:
    hf = make(tmp_path / "hf", "baichuan", torch.bfloat16, unit_rows=False)
    convert_hf_to_mcore(hf, tmp_path / "mcore", verify=True)
    once = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "once", verify=True)
    convert_hf_to_mcore(once, tmp_path / "again")
    twice = convert_mcore_to_hf(tmp_path / "again", tmp_path / "twice")
    assert_same_tensors(read_all(once), read_all(twice))
    lengths = read_all(once)["lm_head.weight"].float().norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(101), atol=4e-3, rtol=0)
