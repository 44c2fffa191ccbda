"""Tiny Hugging Face models with tokenizer files, and a reader that is not ours."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationConfig

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
NUM_LAYERS = 4


def make_hf_model(
    directory: Path,
    family: str,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    scoring: bool = False,
    **changes: Any,
) -> Path:
    """Save a random model of ``family`` with 2 query groups, 4 layers and the odd vocabulary of 101 tokens.

    ``scoring`` saves an ``AutoModelForSequenceClassification`` with one label instead of a language model.
    """
    values: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
    }
    if family == "llama":
        values["rope_parameters"] = LLAMA3_ROPE
    if family != "qwen2":
        values["head_dim"] = 24  # not hidden_size / num_attention_heads
    if scoring:
        values |= {"num_labels": 1, "pad_token_id": 0}
    auto_class = AutoModelForSequenceClassification if scoring else AutoModelForCausalLM
    model = auto_class.from_config(AutoConfig.for_model(family, **{**values, **changes}))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    model.generation_config = GenerationConfig(eos_token_id=[2, 3])
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    (directory / "training_args.bin").write_text("not part of the model")
    return directory


def read_all(directory: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a Hugging Face directory, read by the safetensors library."""
    return {
        name: tensor for path in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(path).items()
    }


def edit_tensors(directory: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors of an unsharded Hugging Face directory."""
    tensors = {**read_all(directory), **changes}
    save_file(
        {k: v.clone() for k, v in tensors.items() if v is not None}, directory / "model.safetensors", {"format": "pt"}
    )


def edit_config(directory: Path, **changes: Any) -> None:
    """Set fields of a ``config.json``."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=2))


def assert_same_tensors(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Compare names, dtypes, shapes and bits."""
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name
