"""A model file that disagrees with the checkpoint is told key by key."""

import dataclasses

import pytest

from mindllm.config import architecture_mismatches, compose_config
from mindllm.models.families.architecture import Architecture, Llama3RopeScaling

LLAMA32_1B = Architecture(
    family="llama",
    num_layers=16,
    hidden_size=2048,
    ffn_hidden_size=8192,
    num_attention_heads=32,
    num_query_groups=8,
    head_dim=64,
    vocab_size=128256,
    max_position_embeddings=131072,
    norm_epsilon=1e-5,
    rotary_base=500000.0,
    tie_embeddings=True,
    qkv_bias=False,
    qk_layernorm=False,
    dtype="bfloat16",
    rope_scaling=Llama3RopeScaling(32.0, 1.0, 4.0, 8192),
)
CHECKPOINT = dataclasses.asdict(LLAMA32_1B)


def test_the_shipped_model_file_agrees_with_its_checkpoint():
    keys = compose_config("grpo_trainer_llama32_1b", []).actor.model_keys
    assert architecture_mismatches(keys, CHECKPOINT) == []


@pytest.mark.parametrize(
    ("key", "value", "fragment"),
    [
        ("num_layers", 15, "num_layers is 15 in the model file but 16 in the checkpoint"),
        ("hidden_size", 1, "hidden_size"),
        ("num_query_groups", 4, "num_query_groups"),
        ("kv_channels", 128, "kv_channels is 128 in the model file but 64"),
        ("add_qkv_bias", True, "add_qkv_bias is True"),
        ("untie_embeddings_and_output_weights", True, "untie_embeddings_and_output_weights is True"),
        ("group_query_attention", False, "group_query_attention"),
        ("rotary_base", 10000.0, "rotary_base"),
        ("norm_epsilon", 1e-6, "norm_epsilon"),
        ("rope_scaling_factor", 8.0, "rope_scaling_factor is 8.0 in the model file but 32.0"),
        ("qk_layernorm", True, "qk_layernorm"),
        ("padded_vocab_size", 128000, "padded_vocab_size"),
        ("vocab_size", 128000, "vocab_size"),
    ],
)
def test_a_key_that_disagrees_is_named_with_both_values(key, value, fragment):
    (sentence,) = architecture_mismatches({key: value}, CHECKPOINT)
    assert fragment in sentence


def test_rope_scaling_that_the_checkpoint_has_not_is_a_mismatch():
    without = CHECKPOINT | {"rope_scaling": None}
    assert len(architecture_mismatches({"rope_scaling_type": "llama3"}, without)) == 1


def test_more_padding_than_the_vocabulary_needs_is_no_mismatch():
    assert architecture_mismatches({"padded_vocab_size": 128512}, CHECKPOINT) == []


def test_groups_are_not_compared_where_grouping_is_off():
    plain = CHECKPOINT | {"num_query_groups": 32}
    assert architecture_mismatches({"group_query_attention": False, "num_query_groups": 1}, plain) == []
    everything = {"group_query_attention": True, "num_query_groups": 32, "num_attention_heads": 32}
    assert architecture_mismatches(everything, plain) == []
