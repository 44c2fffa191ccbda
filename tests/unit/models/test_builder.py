"""Sizes and rotary frequencies that a model is built with."""

import dataclasses

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mindllm.models.builder import Layout, inverse_frequencies, padded_vocab_size
from mindllm.models.families.architecture import Architecture, Llama3RopeScaling

ARCH = Architecture("llama", 2, 64, 96, 4, 2, 64, 100, 512, 1e-5, 500000.0, False, False, False, "float32")


@pytest.mark.parametrize("scaling", [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (4.0, 2.0, 3.0, 64)])
def test_scaled_frequencies_equal_those_of_hugging_face(scaling: tuple[float, float, float, int]) -> None:
    factor, low, high, length = scaling
    theirs = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": ARCH.rotary_base,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": length,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    ours = inverse_frequencies(dataclasses.replace(ARCH, rope_scaling=Llama3RopeScaling(factor, low, high, length)))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert not torch.allclose(ours, inverse_frequencies(ARCH))


def test_frequencies_without_scaling_are_powers_of_the_base() -> None:
    expected = [ARCH.rotary_base ** (-2 * index / 64) for index in range(32)]
    torch.testing.assert_close(inverse_frequencies(ARCH), torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("vocab_size", "divisible_by", "tensor", "rows"),
    [(251, 1, 1, 251), (251, 1, 2, 252), (251, 128, 1, 256), (251, 128, 4, 512), (256, 128, 2, 256), (1, 8, 8, 64)],
)
def test_the_vocabulary_is_padded_to_equal_shards(vocab_size: int, divisible_by: int, tensor: int, rows: int) -> None:
    assert padded_vocab_size(vocab_size, divisible_by, tensor) == rows


def test_a_layout_counts_the_ranks_of_one_copy() -> None:
    assert Layout(tensor=2, pipeline=3, virtual_pipeline=2).model_ranks == 6
