"""Reading Hugging Face configs: every field is honoured, known to be irrelevant, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from mindllm.errors import UserError
from mindllm.models.families import Llama3RopeScaling, family_of, load_architecture
from mindllm.models.families.registry import FAMILIES

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
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


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_saved_by_transformers_is_read(name: str, tmp_path: Path) -> None:
    saved = CONFIGS[name](**SIZES, head_dim=24, tie_word_embeddings=True, dtype="bfloat16", initializer_range=0.1)
    saved.save_pretrained(tmp_path)
    architecture = load_architecture(tmp_path)
    assert (architecture.family, architecture.dtype, architecture.head_dim) == (name, "bfloat16", 24)
    assert (architecture.num_layers, architecture.num_query_groups, architecture.vocab_size) == (3, 2, 101)
    assert architecture.tie_embeddings and architecture.init_std == 0.1
    assert (architecture.qkv_bias, architecture.qk_layernorm) == (name == "qwen2", name == "qwen3")


@pytest.mark.parametrize("name", FAMILIES)
def test_fields_left_out_mean_what_transformers_takes_them_for(name: str) -> None:
    sizes = {**SIZES, "num_attention_heads": 32, "hidden_size": 256}
    del sizes["num_key_value_heads"]
    theirs, ours = CONFIGS[name](**sizes), family_of(name).parse({"model_type": name, **sizes})
    assert ours.num_query_groups == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 256 // 32)
    assert ours.rotary_base == theirs.rope_parameters["rope_theta"]
    assert ours.norm_epsilon == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.init_std == theirs.initializer_range


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
    ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ("llama", {"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map"),
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
    with pytest.raises(UserError, match=r"'qwen22' is not known; known are llama, qwen2, qwen3; did you mean 'qwen2'"):
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
