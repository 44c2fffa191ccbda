"""Tiny Hugging Face models that each stress something, beside their converted checkpoints."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from mindllm.convert import convert_hf_to_mcore
from mindllm.models.families import Architecture, load_architecture

# Four layers, so that two pipeline stages can hold two interleaved chunks each; initial weights large enough that
# attention, biases and norms all matter to the logits.
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.12,
    "dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

ORIGINAL_LENGTH = 32
"""Length below which Llama 3's frequency scaling changes nothing in the tiny llama."""

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        **_SIZES,
        vocab_size=160,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL_LENGTH,
        },
    ),
    # an odd vocabulary, so that sharding it needs padding, and biases
    "qwen2": Qwen2Config(**_SIZES, vocab_size=251, tie_word_embeddings=False),
    # head_dim other than hidden_size / num_attention_heads, tied, norms of queries and keys
    "qwen3": Qwen3Config(**_SIZES, vocab_size=199, head_dim=24, tie_word_embeddings=True),
}


@dataclass(frozen=True)
class TinyModel:
    """One model in both forms; ``hf`` is the transformers model in fp32, the reference of every comparison."""

    name: str
    hf_dir: Path
    checkpoint: Path
    arch: Architecture
    hf: PreTrainedModel

    @property
    def vocab_size(self) -> int:
        """True vocabulary size."""
        return self.arch.vocab_size


def make_model(name: str, directory: Path) -> TinyModel:
    """Write the tiny model ``name`` under ``directory`` in both forms."""
    torch.manual_seed(sorted(CONFIGS).index(name))
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".bias"):
                parameter.normal_(0.0, 0.5)
            elif "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory / "hf")
    checkpoint = convert_hf_to_mcore(directory / "hf", directory / "mcore")
    return TinyModel(name, directory / "hf", checkpoint, load_architecture(directory / "hf"), model.float().eval())
