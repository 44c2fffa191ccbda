"""A PEFT adapter merged on the way: the sum it stands for, in either direction, and refusals."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.convert.lora import Adapter
from mindllm.convert.plan import ordered_weights
from mindllm.errors import UserError
from mindllm.formats.arrays import from_torch, to_torch
from mindllm.models.families import load_architecture
from tests.unit.convert.hand_written import make_hand_written
from tests.unit.convert.tiny_models import assert_same_tensors, make_hf_model, read_all

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
        ({"use_dora": True}, "has no magnitude, but use_dora is True"),
        *(
            (
                {"init_lora_weights": kind},
                f"init_lora_weights is '{kind}': this initialization also changed the weights",
            )
            for kind in ("pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "loftq", "lora_ga", "of_next_year")
        ),
        (
            {"alora_invocation_tokens": [1, 2]},
            "acts only after its invocation tokens, .* peft refuses it too",
        ),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters is .* merge it with peft"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config is .* the field is not known here; merge it with peft"),
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
        ("base_model.model.model.embed_tokens.lora_embedding_A", "embed_tokens.weight has lora_embedding_A only"),
        (
            "base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector.weight",
            "has a magnitude, but use_dora",
        ),
        (
            "base_model.model.lm_head.base_layer.weight",
            r"shape \(4, 64\), lm_head.weight .* needs \(101, 64\); .* resized",
        ),
        ("base_model.model.model.layers.1.mlp.up_proj.lora_B.bias", "does not have: .*up_proj.bias"),
        ("model.layers.1.self_attn.q_proj.lora_A.weight", "is no tensor of a LoRA adapter"),
    ],
)
def test_tensors_that_do_not_fit_are_named(hf_qwen2: Path, tmp_path: Path, name: str, said: str) -> None:
    make_adapter(tmp_path / "lora")
    path = tmp_path / "lora" / "adapter_model.safetensors"
    save_file({**load_file(path), name: torch.ones(4, 64)}, path)
    with pytest.raises(UserError, match=said):
        convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora")


def test_a_directory_without_an_adapter_is_refused(hf_qwen2: Path, tmp_path: Path) -> None:
    make_adapter(tmp_path / "lora")
    save_file({}, tmp_path / "lora" / "adapter_model.safetensors")
    with pytest.raises(UserError, match="adapter_model.safetensors holds no tensor"):
        convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora")
    with pytest.raises(UserError, match=r"has no adapter_config\.json"):
        convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=hf_qwen2)


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ATTENTION = ["q_proj", "v_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "all linear layers": {"target_modules": ALL},
    "rslora and rank pattern": {"use_rslora": True, "rank_pattern": {"q_proj": 2}},
    "alpha pattern": {"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 16, r"layers\.[12]\..*": 2}},
    "some layers": {"layers_to_transform": [1, 3], "exclude_modules": ["model.layers.3.self_attn.v_proj"]},
    "dora": {"use_dora": True, "target_modules": ALL},
    "dora and rslora": {"use_dora": True, "use_rslora": True, "rank_pattern": {"v_proj": 2}},
    "untied output layer": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "embedding with dora": {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
    "whole modules": {"modules_to_save": ["embed_tokens", "lm_head", "norm", "input_layernorm"]},
    "trained biases": {"bias": "all"},
    "biases of the adapted layers": {"bias": "lora_only"},
    "a bias of the adapter": {"lora_bias": True},
    "fan_in_fan_out": {"fan_in_fan_out": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "random": {"init_lora_weights": False},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
}


def make_with_peft(base: Path, directory: Path, **options: Any) -> Any:
    """Save an adapter of random values as peft does, and return the model that peft loads and merges from it."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, **options})
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "magnitude" in name:
            parameter.data.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
        elif parameter.requires_grad:
            parameter.data.normal_(generator=generator)
    model.save_pretrained(directory)
    fresh = AutoModelForCausalLM.from_pretrained(base)
    return peft.PeftModel.from_pretrained(fresh, directory).merge_and_unload()


@pytest.mark.peer
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_adapter_is_merged_as_peft_does(hf_qwen2: Path, tmp_path: Path, kind: str) -> None:
    theirs = dict(make_with_peft(hf_qwen2, tmp_path / "lora", **KINDS[kind]).state_dict())
    architecture = load_architecture(hf_qwen2)
    base = read_all(hf_qwen2)
    with closing(Adapter(tmp_path / "lora", ordered_weights(architecture), architecture)) as adapter:
        ours = {name: to_torch(adapter.apply(name, from_torch(tensor))) for name, tensor in base.items()}
    assert_close(ours, theirs)
    assert any(not torch.equal(ours[name], base[name]) for name in base)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_what_peft_merges_goes_the_whole_way(hf_qwen2: Path, tmp_path: Path) -> None:
    options = {"target_modules": [*ALL, "lm_head"], "use_dora": True, "modules_to_save": ["norm"]}
    theirs = dict(make_with_peft(hf_qwen2, tmp_path / "lora", **options).state_dict())
    convert_hf_to_mcore(hf_qwen2, tmp_path / "mcore", lora_load=tmp_path / "lora", verify=True)
    assert_close(read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")), theirs)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [{"target_modules": ["lm_head"]}, {"target_modules": ["embed_tokens"]}, {"modules_to_save": ["embed_tokens"]}],
)
def test_an_adapter_of_one_side_of_a_tied_matrix_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen2", tied=True)
    make_with_peft(hf, tmp_path / "lora", **options)
    with pytest.raises(UserError, match="is adapted, but embedding and output layer are one matrix"):
        convert_hf_to_mcore(hf, tmp_path / "mcore", lora_load=tmp_path / "lora")


def test_saved_embeddings_of_a_tied_model_are_taken_over_when_both_are_the_same(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen2", tied=True)
    products = make_adapter(tmp_path / "lora")
    path = tmp_path / "lora" / "adapter_model.safetensors"
    saved = read_all(hf)["model.embed_tokens.weight"] + 1
    copies = {"base_model.model.model.embed_tokens.weight": saved, "base_model.model.lm_head.weight": saved.clone()}
    save_file({**load_file(path), **copies}, path)
    convert_hf_to_mcore(hf, tmp_path / "mcore", lora_load=tmp_path / "lora", verify=True)
    wanted = {**expected(hf, products, 2.0), "model.embed_tokens.weight": saved}
    assert_close(read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")), wanted)
    save_file({**load_file(path), "base_model.model.lm_head.weight": saved + 1}, path)
    with pytest.raises(UserError, match="lm_head.weight differs from the embedding, to which it is tied"):
        convert_hf_to_mcore(hf, tmp_path / "other", lora_load=tmp_path / "lora")


def test_an_adapter_that_lies_in_the_models_own_directory_is_merged_when_it_is_named(tmp_path: Path) -> None:
    hf = make_hf_model(tmp_path / "hf", "qwen2")
    products = make_adapter(tmp_path / "lora")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "lora" / name).rename(hf / name)
    convert_hf_to_mcore(hf, tmp_path / "mcore", lora_load=hf)
    (hf / "adapter_model.safetensors").unlink()
    assert_close(read_all(convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")), expected(hf, products, 2.0))


def test_the_rows_of_length_one_of_baichuan_cannot_be_adapted(tmp_path: Path) -> None:
    hf = make_hand_written(tmp_path / "hf", "baichuan", torch.float32)
    make_adapter(tmp_path / "lora")
    prefix = "base_model.model.lm_head."
    pair = {prefix + "lora_A.weight": torch.ones(4, 64), prefix + "lora_B.weight": torch.ones(101, 4)}
    save_file(pair, tmp_path / "lora" / "adapter_model.safetensors")
    with pytest.raises(UserError, match="lm_head.weight has rows of length one, which cannot be adapted"):
        convert_hf_to_mcore(hf, tmp_path / "mcore", lora_load=tmp_path / "lora")
