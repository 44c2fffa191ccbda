"""Mistral: Llama's form, in early versions with a sliding window."""

from mindllm.models.families.base import Family
from mindllm.models.families.weights import LLAMA_RULES

MISTRAL = Family(
    name="mistral",
    hf_class="MistralForCausalLM",
    rules=LLAMA_RULES,
    defaults={
        "initializer_range": 0.02,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    fixed={"attention_dropout": 0.0, "hidden_act": "silu"},
    sliding_window="always",
)
