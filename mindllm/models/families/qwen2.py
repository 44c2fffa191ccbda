"""Qwen2 and Qwen2.5: Llama's form with biases on the query, key and value projections."""

from mindllm.models.families.base import Family
from mindllm.models.families.weights import LLAMA_RULES, QKV_BIAS

QWEN2 = Family(
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    rules=(*LLAMA_RULES, QKV_BIAS),
    defaults={
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    fixed={"attention_dropout": 0.0, "hidden_act": "silu"},
    irrelevant=frozenset({"attention_bias", "qkv_bias"}),  # stated by some tools; the biases are there in any case
    qkv_bias=True,
    sliding_window="optional",
)
