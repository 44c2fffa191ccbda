"""What a decoder-only transformer looks like, independent of who wrote its config file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Llama3RopeScaling:
    """Frequency scaling of Llama 3.1 and later; names as in Hugging Face's ``rope_parameters``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Architecture:
    """One model's shape, read from a Hugging Face ``config.json`` by its family.

    Sizes are counts of elements; ``vocab_size`` is the true one, before padding for tensor parallelism.
    ``dtype`` is the checkpoint's own (``float32``, ``bfloat16``, ``float16``). A model with a ``scalar_head`` scores
    each token with one number instead of one per vocabulary entry; its embedding is never tied to that head.
    """

    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rotary_base: float
    tie_embeddings: bool
    qkv_bias: bool
    qk_layernorm: bool
    dtype: str
    init_std: float = 0.02
    rope_scaling: Llama3RopeScaling | None = None
    scalar_head: bool = False
