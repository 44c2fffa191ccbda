"""Qwen3-MoE: Qwen3's attention and experts."""

from mindllm.models.families.base import Family
from mindllm.models.families.experts import MoeFields
from mindllm.models.families.weights import ATTENTION, DENSE_MLP, MOE_MLP, OUTER, QK_NORMS

QWEN3_MOE = Family(
    name="qwen3_moe",
    hf_class="Qwen3MoeForCausalLM",
    rules=(*OUTER, *ATTENTION, *QK_NORMS, *DENSE_MLP, *MOE_MLP),
    defaults={
        "decoder_sparse_step": 1,
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
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
    moe=MoeFields(
        num_experts=("num_local_experts", "num_experts"),
        ffn="moe_intermediate_size",
        normalize_top_k="norm_topk_prob",
        dense_layers="listed",
    ),
)
