"""Reading Hugging Face configs: every field is honoured, known to be irrelevant, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from mindllm.errors import UserError
from mindllm.models.families import Llama3RopeScaling, YarnRopeScaling, family_of, load_architecture
from mindllm.models.families.registry import FAMILIES

IN_TRANSFORMERS = [name for name in FAMILIES if name not in ("internlm2", "baichuan")]
WITH_HEAD_DIM = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "seed_oss")
SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SIZES, **changes}


def parse(model_type: str = "llama", **changes: Any) -> Any:
    return family_of(model_type).parse(config(model_type, **changes))


# Fields beside those of the family in configs that are published under these names.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2.5-7B": ("qwen2", {"use_mrope": False, "use_sliding_window": False, "sliding_window": 131072}),
    "DeepSeek-R1-Distill-Qwen-7B": ("qwen2", {"use_mrope": False, "max_window_layers": 28, "use_cache": True}),
    "Qwen2.5 saved by transformers": ("qwen2", {"layer_types": ["full_attention"] * 3, "attention_bias": True}),
    "SmolLM2-135M": (
        "llama",
        {
            "is_llama_config": True,
            "rope_interleaved": False,
            "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16"}},
            "pretraining_tp": 1,
        },
    ),
    "Llama fine-tuned by LLaVA's and Vicuna's tools": (
        "llama",
        {
            "model_max_length": 2048,
            "max_sequence_length": 2048,
            "tokenizer_model_max_length": 2048,
            "pad_token": "<pad>",
        },
    ),
    "Falcon3": ("llama", {"activation": "swiglu", "hidden_act": "swish"}),
    "Llama fine-tuned by Unsloth": ("llama", {"unsloth_fixed": True, "unsloth_version": "2024.9"}),
    "Llama with notes of transformers": (
        "llama",
        {"_flash_attn_2_enabled": True, "_attn_implementation_autoset": True, "neftune_noise_alpha": 5},
    ),
    "Llama with features that are off": (
        "llama",
        {
            "layer_types": ["full_attention"] * 3,
            "logit_scale": 1.0,
            "rope_scaling": {"type": "linear", "factor": 1.0},
            "num_nextn_predict_layers": 0,
            "use_qk_norm": False,
            "no_rope_layers": [],
        },
    ),
    "Mistral fine-tuned by Llama's tools": (
        "mistral",
        {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    ),
    "Qwen3-8B": ("qwen3", {"attention_bias": False, "use_qk_norm": True, "max_window_layers": 36}),
    "Phi-4-mini without longrope": (
        "phi3",
        {
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "mlp_bias": False,
            "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        },
    ),
    "internlm2_5-7b": (
        "internlm2",
        {"attn_implementation": "eager", "bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    ),
    "Mixtral-8x7B": ("mixtral", {"output_router_logits": False, "router_aux_loss_coef": 0.02, "attention_bias": False}),
    "Moonlight": (
        "deepseek_v3",
        {"num_nextn_predict_layers": 0, "aux_loss_alpha": 0.001, "seq_aux": True, "pretraining_tp": 1, "ep_size": 1},
    ),
    "Baichuan2-7B": (
        "baichuan",
        {"vocab_size": 125696, "model_max_length": 4096, "_from_model_config": True, "tokenizer_class": "Baichuan"},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_fields_that_change_nothing_are_accepted(name: str) -> None:
    model_type, fields = PUBLISHED[name]
    needed = {"max_position_embeddings": 4096}
    needed |= {"bias": False} if model_type == "internlm2" else {}
    needed |= {"vocab_size": 125696} if model_type == "baichuan" else {}
    assert parse(model_type, **{**fields, **needed}) == parse(model_type, **needed)


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("qwen2", {"use_mrope": True}),
        ("llama", {"rope_interleaved": True}),
        ("llama", {"logit_scale": 0.5}),
        ("llama", {"logit_scale": True}),
        ("llama", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ("llama", {"use_qk_norm": True}),
        ("llama", {"is_causal": False}),
        ("llama", {"auto_map": {"AutoModel": "modeling.Model"}}),
        ("llama", {"some_new_feature": 3}),
        ("mistral", {"attention_bias": True}),
        ("phi3", {"lm_head_bias": True}),
        ("internlm2", {"bias": False, "attention_dropout": 0.1}),
    ],
)
def test_fields_that_may_change_the_model_are_refused_with_the_flag_that_ignores_them(
    model_type: str, fields: dict[str, Any]
) -> None:
    *_, (name, _) = fields.items()
    with pytest.raises(UserError, match=rf"config.json: .*{name}.*add --ignore-config-field {name}$"):
        parse(model_type, **fields)
    ours = family_of(model_type).parse(config(model_type, **fields), ignored=[name])
    assert ours == parse(model_type, **{key: value for key, value in fields.items() if key != name})


def test_only_fields_that_are_there_and_that_the_family_does_not_read_can_be_ignored() -> None:
    family = family_of("llama")
    with pytest.raises(UserError, match="config.json has no field some_feature to ignore; did you mean 'some_featur'"):
        family.parse(config(some_featur=1), ignored=["some_feature"])
    for name, value in {"hidden_act": "gelu", "attention_bias": True, "quantization_config": {}}.items():
        with pytest.raises(UserError, match=f"{name} cannot be ignored, it decides what a model of 'llama' computes"):
            family.parse(config(**{name: value}), ignored=[name])


def test_baichuan_2_7b_has_rotary_positions_although_it_states_model_max_length() -> None:
    sizes = {"vocab_size": 125696, "model_max_length": 4096}
    assert parse("baichuan", **sizes, max_position_embeddings=4096).position_embedding == "rope"
    assert parse("baichuan", **sizes).position_embedding == "alibi"


@pytest.mark.parametrize("name", WITH_HEAD_DIM)
def test_a_config_saved_by_transformers_is_read(name: str, tmp_path: Path) -> None:
    changes = {"head_dim": 24, "tie_word_embeddings": True, "dtype": "bfloat16", "initializer_range": 0.1}
    saved = AutoConfig.for_model(name, **SIZES, **changes)
    saved.save_pretrained(tmp_path)
    architecture = load_architecture(tmp_path)
    assert (architecture.family, architecture.dtype, architecture.head_dim) == (name, "bfloat16", 24)
    assert (architecture.num_layers, architecture.num_query_groups, architecture.vocab_size) == (3, 2, 101)
    assert architecture.tie_embeddings and architecture.init_std == 0.1
    assert architecture.qkv_bias == (name in ("qwen2", "seed_oss"))
    assert architecture.qk_layernorm == name.startswith("qwen3")


@pytest.mark.parametrize("name", IN_TRANSFORMERS)
def test_fields_left_out_mean_what_transformers_takes_them_for(name: str) -> None:
    sizes = {**SIZES, "num_attention_heads": 32, "hidden_size": 256, "num_hidden_layers": 5}
    del sizes["num_key_value_heads"]
    if name == "deepseek_v2":
        sizes |= {"num_experts_per_tok": 6, "q_lora_rank": 1536}  # without defaults
    theirs, ours = AutoConfig.for_model(name, **sizes), family_of(name).parse({"model_type": name, **sizes})
    if ours.mla is None:
        assert ours.num_query_groups == theirs.num_key_value_heads
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 256 // 32)
    else:
        mla = (ours.mla.query_rank, ours.mla.kv_rank, ours.mla.nope_dim, ours.mla.rope_dim, ours.mla.value_dim)
        names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        assert mla == tuple(getattr(theirs, field) for field in names)
    if ours.moe is not None:
        assert ours.moe.top_k == theirs.num_experts_per_tok
        num_experts = "num_experts" if name in ("qwen2_moe", "deepseek_v2") else "num_local_experts"
        assert ours.moe.num_experts == getattr(theirs, num_experts)
        assert ours.moe.normalize_top_k == getattr(theirs, "norm_topk_prob", True)
        assert ours.moe.dense_layers == tuple(range(getattr(theirs, "first_k_dense_replace", 0)))
        assert ours.moe.scaling_factor == getattr(theirs, "routed_scaling_factor", 1.0)
        assert ours.moe.ffn_hidden_size == getattr(theirs, "moe_intermediate_size", SIZES["intermediate_size"])
        assert ours.moe.num_groups == (8 if name == "deepseek_v3" else None)
    assert ours.rotary_base == theirs.rope_parameters["rope_theta"]
    assert ours.norm_epsilon == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.init_std == theirs.initializer_range
    if name in ("mistral", "mixtral", "phi3"):
        assert ours.sliding_window == theirs.sliding_window


def test_null_is_no_sliding_window_although_mistrals_default_is_one() -> None:
    assert parse("mistral").sliding_window == 4096
    assert parse("mistral", sliding_window=None).sliding_window is None
    assert parse("phi3", sliding_window=2047).sliding_window == 2047


def test_yarn_is_read_for_deepseek_with_its_defaults() -> None:
    sizes = {"q_lora_rank": None, "num_experts_per_tok": 2}
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707}
    assert parse("deepseek_v2", **sizes, rope_scaling=scaling).rope_scaling == YarnRopeScaling(
        factor=40.0,
        original_max_position_embeddings=4096,
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=0.707,
        mscale_all_dim=0.0,
    )


def test_both_forms_of_rope_parameters_give_the_same_architecture() -> None:
    older = parse(rope_theta=5e5, rope_scaling=LLAMA3)
    newer = parse(rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert older == newer
    assert newer.rope_scaling == Llama3RopeScaling(32.0, 1.0, 4.0, 8192)
    assert newer.rotary_base == 5e5


def test_a_model_without_scaling_keeps_its_rotary_base() -> None:
    assert parse(rope_theta=1e6).rotary_base == 1e6
    assert parse(rope_parameters={"rope_type": "default", "rope_theta": 1e6}).rotary_base == 1e6


def test_null_fields_count_as_left_out() -> None:
    assert (
        parse("qwen2", head_dim=None, sliding_window=None, rope_scaling=None, quantization_config=None).head_dim == 16
    )


def test_a_window_that_no_layer_uses_is_accepted() -> None:
    parse("qwen2", use_sliding_window=False, sliding_window=4096, max_window_layers=1)
    parse("qwen2", use_sliding_window=True, sliding_window=4096, max_window_layers=3)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, "'yarn'"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ("llama", {"rope_scaling": {**LLAMA3, "factor": None}}, "factor"),
    ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": 8.0}}, "low_freq_factor"),
    ("llama", {"rope_scaling": {**LLAMA3, "attention_factor": 1.5}}, "attention_factor"),
    ("llama", {"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "factor": 8.0}}, "disagree"),
    ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta"),
    ("llama", {"rope_theta": "big"}, "rope_theta"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("llama", {"attention_bias": True}, "attention_bias"),
    ("llama", {"mlp_bias": True}, "mlp_bias"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"attention_dropout": 0.1}, "attention_dropout"),
    ("qwen3", {"attention_bias": True}, "attention_bias"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2}, "use_sliding_window"),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    ("llama", {"sliding_window": 4096}, "sliding_window"),
    (
        "mistral",
        {"layer_types": ["sliding_attention"] * 3},
        "layer_types has ['sliding_attention']; family 'mistral' supp",
    ),
    ("llama", {"activation": "gelu"}, "activation is 'gelu'"),
    ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ("llama", {"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map"),
    ("llama", {"quantization_config": {"quant_method": "fp8"}}, "weight_block_size"),
    ("baichuan", {}, "z_loss_weight is missing; only Baichuan 2 states it"),
    ("internlm2", {}, "bias is True"),
    ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "'longrope'"),
    ("qwen3_moe", {"num_experts_per_tok": 200}, "num_experts_per_tok 200 is more than num_experts 128"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise"),
    ("deepseek_v3", {"topk_method": "greedy"}, "topk_method"),
    ("deepseek_v3", {"n_group": 7, "num_hidden_layers": 5}, "n_group 7"),
    ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func"),
    ("llama", {"rms_norm_epsilon": 1e-6}, "did you mean 'rms_norm_eps'"),
    ("llama", {"logit_scale": 2.0}, "logit_scale"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ("llama", {"num_hidden_layers": None}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": "3"}, "num_hidden_layers"),
    ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size 64"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
    ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ("llama", {"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
]


@pytest.mark.parametrize(("model_type", "changes", "named"), REFUSED, ids=[str(case[1])[:60] for case in REFUSED])
def test_what_the_model_would_not_do_is_refused_by_name(model_type: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as error:
        parse(model_type, **changes)
    assert named in str(error.value)
    assert "config.json" in str(error.value)


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("qwen22")))
    with pytest.raises(UserError, match=r"'qwen22' is not known; known are llama, .*; did you mean 'qwen2'"):
        load_architecture(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no config.json"),
        ("{", "not valid JSON"),
        ("[]", "no model_type"),
        ('{"vocab_size": 5}', "no model_type"),
    ],
)
def test_a_directory_without_a_usable_config_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=said):
        load_architecture(tmp_path)
    with pytest.raises(UserError, match="is not a directory"):
        load_architecture(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "olmo2", "granite", "glm4"])
def test_a_family_that_megatron_core_cannot_express_is_refused_with_the_feature(name: str, tmp_path: Path) -> None:
    AutoConfig.for_model(name).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"'{name}' is not supported by megatron-core: it "):
        load_architecture(tmp_path)
