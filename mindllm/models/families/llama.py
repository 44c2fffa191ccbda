"""Llama 2, 3, 3.1, 3.2, 3.3 and models of the same form."""

from mindllm.models.families.base import Family
from mindllm.models.families.weights import LLAMA_RULES

LLAMA = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    rules=LLAMA_RULES,
    defaults={
        "initializer_range": 0.02,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fixed={"attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "mlp_bias": False},
)
