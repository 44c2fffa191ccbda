"""The rearrangements between the two naming schemes, on numbers small enough to read."""

import dataclasses

import numpy as np

from mindllm.formats.arrays import Array
from mindllm.models.families import Architecture, Weight, family_of
from mindllm.models.families.transforms import merge, pad_rows, split

TINY = {"vocab_size": 5, "hidden_size": 4, "intermediate_size": 2, "num_hidden_layers": 1}
ARCHITECTURE = family_of("qwen2").parse(
    {"model_type": "qwen2", **TINY, "num_attention_heads": 4, "num_key_value_heads": 2}
)


def weight_of(key: str, architecture: Architecture = ARCHITECTURE) -> Weight:
    return next(weight for weight in family_of("qwen2").weights(architecture) if weight.mcore.endswith(key))


def column(*values: int) -> Array:
    """Return a matrix whose rows hold one value each, as long as the hidden size."""
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)


def test_query_key_and_value_are_interleaved_per_query_group() -> None:
    parts = (column(0, 1, 2, 3), column(10, 11), column(20, 21))
    merged = merge(weight_of("linear_qkv.weight"), parts, ARCHITECTURE)
    assert merged[:, 0].tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    back = split(weight_of("linear_qkv.weight"), merged, ARCHITECTURE)
    assert all(np.array_equal(first, second) for first, second in zip(parts, back, strict=True))


def test_biases_follow_their_weights() -> None:
    parts = (np.array([0.0, 1, 2, 3]), np.array([10.0, 11]), np.array([20.0, 21]))
    merged = merge(weight_of("linear_qkv.bias"), parts, ARCHITECTURE)
    assert merged.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_the_gate_comes_before_the_up_projection() -> None:
    merged = merge(weight_of("linear_fc1.weight"), (column(1, 2), column(3, 4)), ARCHITECTURE)
    assert merged[:, 0].tolist() == [1, 2, 3, 4]
    gate, up = split(weight_of("linear_fc1.weight"), merged, ARCHITECTURE)
    assert gate[:, 0].tolist() == [1, 2] and up[:, 0].tolist() == [3, 4]


def test_a_vocabulary_is_padded_with_zero_rows() -> None:
    assert pad_rows(column(1, 2, 3), 5)[:, 0].tolist() == [1, 2, 3, 0, 0]


def test_the_output_layer_is_a_weight_of_untied_models_only() -> None:
    tied = dataclasses.replace(ARCHITECTURE, tie_embeddings=True)
    keys = [{weight.mcore for weight in family_of("qwen2").weights(arch)} for arch in (ARCHITECTURE, tied)]
    assert keys[0] - keys[1] == {"output_layer.weight"}
