"""Hugging Face -> torch_dist -> Hugging Face gives back the same bits, names and files."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from mindllm.checkpoint import latest_iteration_dir, read_checkpoint_info, write_checkpoint_info
from mindllm.convert import convert_hf_to_mcore, convert_mcore_to_hf
from mindllm.formats.torch_dist import TorchDistReader, TorchDistWriter
from tests.unit.convert.tiny_models import assert_same_tensors, edit_config, edit_tensors, make_hf_model, read_all

COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", torch.bfloat16), ("qwen2", torch.float32), ("qwen3", torch.bfloat16)]
)
def test_the_round_trip_is_bit_exact(tmp_path: Path, family: str, dtype: torch.dtype, tied: bool) -> None:
    source = make_hf_model(tmp_path / "hf", family, tied, dtype, shard_size="60KB")
    assert len(list(source.glob("*.safetensors"))) > 2
    convert_hf_to_mcore(source, tmp_path / "mcore", make_vocab_size_divisible_by=16, verify=True)
    info = read_checkpoint_info(latest_iteration_dir(tmp_path / "mcore"))
    assert (info.vocab_size, info.padded_vocab_size, info.dtype) == (101, 112, str(dtype).removeprefix("torch."))

    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", max_shard_bytes=100_000, verify=True)
    assert_same_tensors(read_all(source), read_all(back))
    for name in COPIED:
        assert (back / name).read_bytes() == (source / name).read_bytes(), name
    assert not (back / "training_args.bin").exists()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_transformers_loads_the_export_without_missing_or_unexpected_keys(tmp_path: Path, family: str) -> None:
    source = make_hf_model(tmp_path / "hf", family, tied=family == "qwen3")
    convert_hf_to_mcore(source, tmp_path / "mcore")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back", max_shard_bytes=100_000)
    shards = list(back.glob("*.safetensors"))
    assert len(shards) > 2 and all(path.stat().st_size < 110_000 for path in shards)
    model, report = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    original = AutoModelForCausalLM.from_pretrained(source)
    assert_same_tensors(original.state_dict(), model.state_dict())


def test_a_shard_is_larger_than_the_limit_only_for_one_large_tensor(mcore_qwen2: Path, tmp_path: Path) -> None:
    back = convert_mcore_to_hf(mcore_qwen2, tmp_path / "back", max_shard_bytes=1000)
    weight_map = json.loads((back / "model.safetensors.index.json").read_text())["weight_map"]
    for path in back.glob("*.safetensors"):
        tensors = [tensor for tensor, shard in weight_map.items() if shard == path.name]
        assert len(tensors) == 1 or path.stat().st_size < 3000


def test_a_model_keeps_its_dtype_unless_told(tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "qwen2", dtype=torch.bfloat16)
    convert_hf_to_mcore(source, tmp_path / "fp32", params_dtype="float32")
    assert read_checkpoint_info(latest_iteration_dir(tmp_path / "fp32")).architecture.dtype == "float32"

    back = convert_mcore_to_hf(tmp_path / "fp32", tmp_path / "back", verify=True)
    assert_same_tensors({name: tensor.float() for name, tensor in read_all(source).items()}, read_all(back))
    assert json.loads((back / "config.json").read_text())["dtype"] == "float32"

    again = convert_mcore_to_hf(tmp_path / "fp32", tmp_path / "again", params_dtype="bfloat16")
    assert_same_tensors(read_all(source), read_all(again))
    assert json.loads((again / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_dtype_field_of_older_configs_is_updated_too(hf_qwen2: Path, mcore_qwen2: Path, tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "qwen2")
    edit_config(source, dtype=None, torch_dtype="float32")
    convert_hf_to_mcore(source, tmp_path / "mcore", params_dtype="bfloat16")
    config = json.loads((latest_iteration_dir(tmp_path / "mcore") / "hf" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"


def test_weights_of_mixed_dtypes_keep_each_its_own(tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "qwen3", dtype=torch.bfloat16)
    norms = {name: tensor.float() for name, tensor in read_all(source).items() if "norm" in name}
    edit_tensors(source, norms)
    convert_hf_to_mcore(source, tmp_path / "mcore")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
    assert_same_tensors(read_all(source), read_all(back))


def test_rotary_buffers_and_an_equal_tied_output_are_left_out(tmp_path: Path) -> None:
    source = make_hf_model(tmp_path / "hf", "qwen2", tied=True)
    tensors = read_all(source)
    assert "lm_head.weight" not in tensors
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    edit_tensors(source, {**extra, "lm_head.weight": tensors["model.embed_tokens.weight"]})
    convert_hf_to_mcore(source, tmp_path / "mcore")
    back = convert_mcore_to_hf(tmp_path / "mcore", tmp_path / "back")
    assert_same_tensors(tensors, read_all(back))


def test_an_edited_mcore_tensor_shows_up_in_the_export(hf_qwen2: Path, mcore_qwen2: Path, tmp_path: Path) -> None:
    source = latest_iteration_dir(mcore_qwen2)
    edited = tmp_path / "edited" / "iter_0000005"
    edited.mkdir(parents=True)
    with TorchDistReader(source) as reader, TorchDistWriter(edited) as writer:
        for key in reader.keys():
            tensor = reader.read(key)
            writer.write(key, tensor + 1 if key == "decoder.layers.mlp.linear_fc1.weight" else tensor)
        writer.finish(5)
    info = read_checkpoint_info(source)
    (edited / "hf").symlink_to(info.hf_dir)
    write_checkpoint_info(edited, info.architecture)

    back = convert_mcore_to_hf(tmp_path / "edited", tmp_path / "back", iteration=5)
    expected = {
        name: tensor + 1 if "gate_proj" in name or "up_proj" in name else tensor
        for name, tensor in read_all(hf_qwen2).items()
    }
    assert_same_tensors(expected, read_all(back))
