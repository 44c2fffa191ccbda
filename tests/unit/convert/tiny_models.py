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
LATENT_ATTENTION = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
# What a family's tiny model has beside the sizes common to all.
FAMILY_VALUES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3_ROPE, "head_dim": 24},  # not hidden_size / num_attention_heads
    "mistral": {"head_dim": 24},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "seed_oss": {"head_dim": 24, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 2,
    },
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 24,
        "norm_topk_prob": True,
    },
    "mixtral": {"num_local_experts": 4},
    "deepseek_v2": {**LATENT_ATTENTION, "rope_parameters": YARN_ROPE, "routed_scaling_factor": 1.5},
    "deepseek_v3": {**LATENT_ATTENTION, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0},
}


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
    values |= FAMILY_VALUES[family]
    if scoring:
        values |= {"num_labels": 1, "pad_token_id": 0}
    auto_class = AutoModelForSequenceClassification if scoring else AutoModelForCausalLM
    model = auto_class.from_config(AutoConfig.for_model(family, **{**values, **changes}))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(generator=generator)
    model.generation_config = GenerationConfig(eos_token_id=[2, 3])
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    (directory / "training_args.bin").write_text("not part of the model")
    return directory


def load_hf(directory: Path) -> Any:
    """Return the language model of a Hugging Face directory.

    Its parameters are copied into one that was built in memory: where there is no CUDA, ``from_pretrained`` leaves the
    rotary frequencies unset once the process is prepared for megatron-core.
    """
    loaded = AutoModelForCausalLM.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=loaded.dtype, attn_implementation="eager")
    model.load_state_dict(loaded.state_dict())
    return model.eval()


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
