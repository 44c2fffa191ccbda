"""Seed-OSS: Qwen2's form with a head size of its own."""

from mindllm.models.families.base import Family
from mindllm.models.families.weights import LLAMA_RULES, QKV_BIAS

SEED_OSS = Family(
    name="seed_oss",
    hf_class="SeedOssForCausalLM",
    rules=(*LLAMA_RULES, QKV_BIAS),
    defaults={
        "attention_bias": True,
        "head_dim": 128,
        "initializer_range": 0.02,
        "max_position_embeddings": 524288,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fixed={"attention_bias": True, "attention_out_bias": False, "hidden_act": "silu", "mlp_bias": False},
    # Dropout of the original training; fine-tuning here is without.
    irrelevant=frozenset({"attention_dropout", "residual_dropout"}),
    qkv_bias=True,
)
