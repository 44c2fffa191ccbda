"""Qwen3 (dense): Llama's form with RMSNorm on every query and key head, and a head size of its own."""

from mindllm.models.families.base import Family
from mindllm.models.families.weights import LLAMA_RULES, QK_NORMS

QWEN3 = Family(
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    rules=(*LLAMA_RULES, *QK_NORMS),
    defaults={
        "head_dim": 128,
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    fixed={
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "qk_layernorm": True,
        "use_qk_norm": True,
    },
    qk_layernorm=True,
    sliding_window="optional",
)
