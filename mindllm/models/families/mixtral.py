"""Mixtral: Mistral's attention and experts."""

from mindllm.models.families.base import Family
from mindllm.models.families.experts import MoeFields
from mindllm.models.families.weights import ATTENTION, LAYERS, MOE_NORM, OUTER, Rule, gated_mlp

_HF = "model.layers.{layer}.block_sparse_moe."

MIXTRAL = Family(
    name="mixtral",
    hf_class="MixtralForCausalLM",
    rules=(
        *OUTER,
        *ATTENTION,
        MOE_NORM,
        Rule(LAYERS + "mlp.router.weight", (_HF + "gate.weight",), (("experts", "hidden"),), layers="moe"),
        *gated_mlp(
            LAYERS + "mlp.experts.experts",
            _HF + "experts.{expert}",
            "expert_ffn",
            names=("w1", "w3", "w2"),
            layers="moe",
        ),
    ),
    defaults={
        "initializer_range": 0.02,
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    fixed={"attention_dropout": 0.0, "hidden_act": "silu", "router_jitter_noise": 0.0},
    sliding_window="always",
    moe=MoeFields(num_experts=("num_local_experts",), ffn="intermediate_size"),
)
