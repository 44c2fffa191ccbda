"""A PEFT adapter merged on the way: the sum it stands for, in either direction, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mindllm.checkpoint import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.errors import UserError
from tests.unit.checkpoint.tiny_models import assert_same_tensors, make_hf_model, read_all

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "down_proj"]}
MODULES = ("model.layers.1.self_attn.q_proj", "model.layers.3.mlp.down_proj", "model.layers.0.mlp.up_proj")
SHAPES = {"q_proj": (64, 64), "down_proj": (64, 96), "up_proj": (96, 64)}


def make_adapter(directory: Path, rank: int = 4, **changes: Any) -> dict[str, torch.Tensor]:
    """Save an adapter and return the product of each pair by the name of the weight."""
    generator = torch.Generator().manual_seed(2)
    tensors, products = {}, {}
    for module in MODULES:
        rows, columns = SHAPES[module.rpartition(".")[2]]
        first = torch.randn(rank, columns, generator=generator)
        second = torch.randn(rows, rank, generator=generator)
        tensors[f"base_model.model.{module}.lora_A.weight"] = first
        tensors[f"base_model.model.{module}.lora_B.weight"] = second
        products[f"{module}.weight"] = second @ first
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    return products


def expected(source: Path, products: dict[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    return {
        name: (tensor.float() + scale * products[name]).to(tensor.dtype) if name in products else tensor
        for name, tensor in read_all(source).items()
    }


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], msg=name)


def test_an_adapter_is_merged_in_both_directions(hf_qwen2: Path, mcore_qwen2: Path, tmp_path: Path) -> None:
    products = make_adapter(tmp_path / "lora")
    convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora", verify=True)
    first = read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "first"))
    assert_close(first, expected(hf_qwen2, products, 2.0))
    second = convert_mcore_to_hf(mcore_qwen2, tmp_path / "second", lora_load=tmp_path / "lora", verify=True)
    assert_same_tensors(first, read_all(second))


def test_the_parts_of_a_fused_matrix_are_one_matrix_to_its_adapter(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "phi3")
    first, second = torch.randn(4, 64), torch.randn(128, 4)
    make_adapter(tmp_path / "lora")
    prefix = "base_model.model.model.layers.2.self_attn.qkv_proj."
    pair = {prefix + "lora_A.weight": first, prefix + "lora_B.weight": second}
    save_file(pair, tmp_path / "lora" / "adapter_model.safetensors")
    convert_hf_to_mcore(hf, tmp_path / "mcore", lora_load=tmp_path / "lora")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
    products = {"model.layers.2.self_attn.qkv_proj.weight": second @ first}
    assert_close(read_all(back), expected(hf, products, 2.0))


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj|down_proj|up_proj": 2}}, 0.5),
        ({"r": 99, "rank_pattern": {r"layers\..*_proj": 4}}, 2.0),
    ],
)
def test_the_scale_follows_the_adapters_settings(
    hf_qwen2: Path, tmp_path: Path, changes: dict[str, Any], scale: float
) -> None:
    products = make_adapter(tmp_path / "lora", **changes)
    convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora")
    assert_close(read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "b")), expected(hf_qwen2, products, scale))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": 8}, "of rank 8 do not fit"),
        ({"lora_alpha": None}, "lora_alpha is None"),
    ],
)
def test_other_adapters_are_refused(hf_qwen2: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    make_adapter(tmp_path / "lora", **changes)
    with pytest.raises(UserError, match=said):
        convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora")
    assert not (tmp_path / "mcore").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "base_model.model.model.layers.9.mlp.up_proj.lora_A.weight",
            "the model does not have: .*layers.9",
        ),
        ("base_model.model.model.layers.2.mlp.up_proj.lora_A.weight", "up_proj.weight has lora_A only"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "is not a LoRA matrix"),
    ],
)
def test_tensors_that_do_not_fit_are_named(hf_qwen2: Path, tmp_path: Path, name: str, said: str) -> None:
    make_adapter(tmp_path / "lora")
    path = tmp_path / "lora" / "adapter_model.safetensors"
    save_file({**load_file(path), name: torch.ones(4, 64)}, path)
    with pytest.raises(UserError, match=said):
        convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora")


def test_a_directory_without_an_adapter_is_refused(hf_qwen2: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no adapter_config\.json"):
        convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=hf_qwen2)


@pytest.mark.peer
@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "rank_pattern": {"q_proj": 2}}])
def test_the_result_is_what_peft_merges(hf_qwen2: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], **options)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(hf_qwen2), config)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=generator)
    model.save_pretrained(tmp_path / "lora")
    convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora")
    ours = read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back"))
    assert_close(ours, dict(model.merge_and_unload().state_dict()))
