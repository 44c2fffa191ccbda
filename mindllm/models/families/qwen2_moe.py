"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, experts, and a shared expert weighted by a gate of its own."""

from mindllm.models.families.base import Family
from mindllm.models.families.experts import MoeFields
from mindllm.models.families.weights import ATTENTION, DENSE_MLP, LAYERS, MOE_MLP, OUTER, QKV_BIAS, Rule, gated_mlp

_HF = "model.layers.{layer}.mlp.shared_expert"
_SHARED_EXPERT = gated_mlp(LAYERS + "mlp.shared_experts", _HF, "shared_ffn", layers="moe")
_SHARED_GATE = Rule(
    LAYERS + "mlp.shared_experts.gate_weight", (_HF + "_gate.weight",), (("one", "hidden"),), layers="moe"
)

QWEN2_MOE = Family(
    name="qwen2_moe",
    hf_class="Qwen2MoeForCausalLM",
    rules=(*OUTER, *ATTENTION, QKV_BIAS, *DENSE_MLP, *MOE_MLP, *_SHARED_EXPERT, _SHARED_GATE),
    defaults={
        "decoder_sparse_step": 1,
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "shared_expert_intermediate_size": 5632,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    fixed={"attention_dropout": 0.0, "hidden_act": "silu", "qkv_bias": True},
    irrelevant=frozenset({"attention_bias"}),  # stated by some tools; the biases are there in any case
    qkv_bias=True,
    sliding_window="optional",
    moe=MoeFields(
        num_experts=("num_experts",),
        ffn="moe_intermediate_size",
        shared_size="shared_expert_intermediate_size",
        shared_gate=True,
        normalize_top_k="norm_topk_prob",
        dense_layers="listed",
    ),
)
