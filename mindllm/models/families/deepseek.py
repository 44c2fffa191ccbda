"""DeepSeek-V2, V2-Lite, V3, R1: latent attention, and experts beside shared ones after a few dense layers."""

import dataclasses

from mindllm.models.families.base import Family
from mindllm.models.families.experts import MoeFields
from mindllm.models.families.weights import DENSE_MLP, LAYERS, MOE_MLP, OUTER, Rule, gated_mlp

_HF = "model.layers.{layer}."
_MCORE = LAYERS + "self_attention."

_LATENT_ATTENTION = (
    Rule(LAYERS + "input_layernorm.weight", (_HF + "input_layernorm.weight",), (("hidden",),)),
    Rule(
        _MCORE + "linear_q_proj.weight",
        (_HF + "self_attn.q_proj.weight",),
        (("query", "hidden"),),
        parallel=0,
        only_with="no_query_rank",
    ),
    Rule(
        _MCORE + "linear_q_down_proj.weight",
        (_HF + "self_attn.q_a_proj.weight",),
        (("query_rank", "hidden"),),
        only_with="query_rank",
    ),
    Rule(
        _MCORE + "linear_q_up_proj.layer_norm_weight",
        (_HF + "self_attn.q_a_layernorm.weight",),
        (("query_rank",),),
        only_with="query_rank",
    ),
    Rule(
        _MCORE + "linear_q_up_proj.weight",
        (_HF + "self_attn.q_b_proj.weight",),
        (("query", "query_rank"),),
        parallel=0,
        only_with="query_rank",
    ),
    Rule(
        _MCORE + "linear_kv_down_proj.weight",
        (_HF + "self_attn.kv_a_proj_with_mqa.weight",),
        (("kv_rank+rope", "hidden"),),
    ),
    Rule(
        _MCORE + "linear_kv_up_proj.layer_norm_weight",
        (_HF + "self_attn.kv_a_layernorm.weight",),
        (("kv_rank",),),
    ),
    Rule(
        _MCORE + "linear_kv_up_proj.weight",
        (_HF + "self_attn.kv_b_proj.weight",),
        (("key_value_up", "kv_rank"),),
        parallel=0,
    ),
    Rule(_MCORE + "linear_proj.weight", (_HF + "self_attn.o_proj.weight",), (("hidden", "value"),), parallel=1),
)
_SHARED_EXPERTS = gated_mlp(
    LAYERS + "mlp.shared_experts",
    _HF + "mlp.shared_experts",
    "shared_ffn",
    layers="moe",
    only_with="shared_experts",
)
_EXPERT_BIAS = Rule(
    LAYERS + "mlp.router.expert_bias",
    (_HF + "mlp.gate.e_score_correction_bias",),
    (("experts",),),
    layers="moe",
    only_with="expert_bias",
    keeps_dtype=True,
)
_V2_FIELDS = MoeFields(
    num_experts=("n_routed_experts",),
    ffn="moe_intermediate_size",
    shared_count="n_shared_experts",
    normalize_top_k="norm_topk_prob",
    scaling_factor="routed_scaling_factor",
    groups=("n_group", "topk_group"),
    dense_layers="first",
)

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    hf_class="DeepseekV2ForCausalLM",
    rules=(*OUTER, *_LATENT_ATTENTION, *DENSE_MLP, *MOE_MLP, *_SHARED_EXPERTS),
    defaults={
        "first_k_dense_replace": 0,
        "initializer_range": 0.02,
        "kv_lora_rank": 512,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_method": "greedy",
        "v_head_dim": 128,
    },
    fixed={
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "rope_interleave": True,
        "scoring_func": "softmax",
    },
    irrelevant=frozenset(
        {
            *("auto_map", "aux_loss_alpha", "ep_size", "head_dim", "qk_head_dim", "seq_aux", "topk_method"),
        }
    ),
    rope_types=("default", "yarn"),
    moe=_V2_FIELDS,
    latent_attention=True,
)

DEEPSEEK_V3 = dataclasses.replace(
    DEEPSEEK_V2,
    name="deepseek_v3",
    hf_class="DeepseekV3ForCausalLM",
    rules=(*DEEPSEEK_V2.rules, _EXPERT_BIAS),
    defaults={
        **DEEPSEEK_V2.defaults,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "topk_method": "noaux_tc",
    },
    fixed={
        **{key: value for key, value in DEEPSEEK_V2.fixed.items() if key != "norm_topk_prob"},
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    irrelevant=(DEEPSEEK_V2.irrelevant - {"topk_method"}) | {"num_nextn_predict_layers"},
    moe=dataclasses.replace(_V2_FIELDS, score_function="sigmoid", scores_per_group=2, expert_bias=True),
    later_layers="num_nextn_predict_layers",
)
