"""InternLM2 and 2.5: Llama's form under other names; query, key and value fused per group as in megatron-core.

transformers has no class for it, so nothing here is run from the model's own code (``auto_map``).
"""

from mindllm.models.families.base import Family
from mindllm.models.families.weights import LAYERS, Rule, gated_mlp

_HF = "model.layers.{layer}."

INTERNLM2 = Family(
    name="internlm2",
    hf_class="InternLM2ForCausalLM",
    rules=(
        Rule("embedding.word_embeddings.weight", ("model.tok_embeddings.weight",), (("vocab", "hidden"),), parallel=0),
        Rule(LAYERS + "self_attention.linear_qkv.layer_norm_weight", (_HF + "attention_norm.weight",), (("hidden",),)),
        Rule(
            LAYERS + "self_attention.linear_qkv.weight",
            (_HF + "attention.wqkv.weight",),
            (("query+kv+kv", "hidden"),),
            parallel=0,
        ),
        Rule(
            LAYERS + "self_attention.linear_proj.weight",
            (_HF + "attention.wo.weight",),
            (("hidden", "query"),),
            parallel=1,
        ),
        Rule(LAYERS + "mlp.linear_fc1.layer_norm_weight", (_HF + "ffn_norm.weight",), (("hidden",),)),
        *gated_mlp(LAYERS + "mlp", _HF + "feed_forward", "ffn", names=("w1", "w3", "w2")),
        Rule("decoder.final_layernorm.weight", ("model.norm.weight",), (("hidden",),)),
        Rule("output_layer.weight", ("output.weight",), (("vocab", "hidden"),), parallel=0),
    ),
    defaults={
        "bias": True,
        "initializer_range": 0.02,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fixed={"bias": False, "hidden_act": "silu"},
    irrelevant=frozenset({"auto_map"}),
    rope_types=("default", "dynamic"),
)
