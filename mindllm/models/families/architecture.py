"""What a decoder-only transformer looks like, independent of who wrote its config file."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Llama3RopeScaling:
    """Frequency scaling of Llama 3.1 and later; names as in Hugging Face's ``rope_parameters``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnRopeScaling:
    """YaRN frequency scaling as DeepSeek uses it; names as in Hugging Face's ``rope_parameters``."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float


@dataclass(frozen=True)
class MixtureOfExperts:
    """The layers that choose ``top_k`` of ``num_experts`` MLPs per token.

    ``ffn_hidden_size`` is one expert's; ``shared_ffn_hidden_size`` that of the experts every token passes (0: none),
    weighted by a gate of their own with ``shared_gate``. ``normalize_top_k`` makes the chosen scores sum to one before
    ``scaling_factor``. With groups, experts are chosen among the ``num_chosen_groups`` best of ``num_groups``, a group
    counting by the sum of its ``scores_per_group`` best scores. ``expert_bias`` is added for choosing only. Layers in
    ``dense_layers`` have a plain MLP.
    """

    num_experts: int
    top_k: int
    ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    shared_gate: bool = False
    score_function: Literal["softmax", "sigmoid"] = "softmax"
    normalize_top_k: bool = True
    scaling_factor: float = 1.0
    num_groups: int | None = None
    num_chosen_groups: int | None = None
    scores_per_group: int = 1
    expert_bias: bool = False
    dense_layers: tuple[int, ...] = ()

    @property
    def has_foreign_groups(self) -> bool:
        """Return whether groups count by another number of scores than megatron-core's: ``top_k`` over the groups."""
        return bool(self.num_chosen_groups) and self.scores_per_group != self.top_k // (self.num_chosen_groups or 1)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): ranks of the compressed query (None: not compressed) and key/value."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Architecture:
    """One model's shape, read from a Hugging Face ``config.json`` by its family.

    Sizes are counts of elements; ``vocab_size`` is the true one, before padding for tensor parallelism.
    ``dtype`` is the checkpoint's own (``float32``, ``bfloat16``, ``float16``). A model with a ``scalar_head`` scores
    each token with one number instead of one per vocabulary entry; its embedding is never tied to that head.
    ``rotary_fraction`` is the part of each head that is rotated, ``sliding_window`` the number of tokens that attention
    reaches back (None: all of them). ``position_embedding`` is ``rope`` or ``alibi``.
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
    rope_scaling: Llama3RopeScaling | YarnRopeScaling | None = None
    scalar_head: bool = False
    rotary_fraction: float = 1.0
    rotary_interleaved: bool = False
    sliding_window: int | None = None
    position_embedding: Literal["rope", "alibi"] = "rope"
    moe: MixtureOfExperts | None = None
    mla: LatentAttention | None = None

    @property
    def has_uniform_layers(self) -> bool:
        """Return whether all layers have the same tensors."""
        return self.moe is None or not self.moe.dense_layers

    def is_moe_layer(self, layer: int) -> bool:
        """Return whether layer number ``layer`` (from 0) chooses among experts."""
        return self.moe is not None and layer not in self.moe.dense_layers


def unsupported_for_training(architecture: Architecture) -> str | None:
    """Return a sentence that says why the model builder cannot build ``architecture``, or None if it can."""
    scaling = architecture.rope_scaling
    window, moe = architecture.sliding_window, architecture.moe
    features = {
        "multi-head latent attention": architecture.mla is not None,
        "a mixture of experts": moe is not None,
        "experts chosen from groups that count by another number of scores": moe is not None and moe.has_foreign_groups,
        "ALiBi positions": architecture.position_embedding == "alibi",
        "a rotary embedding of a part of each head": architecture.rotary_fraction != 1.0,
        "an interleaved rotary embedding": architecture.rotary_interleaved,
        f"a sliding window of {window} tokens": bool(window and window < architecture.max_position_embeddings),
        "YaRN rope scaling": isinstance(scaling, YarnRopeScaling),
    }
    found = [name for name, present in features.items() if present]
    if not found:
        return None
    return f"a model of family '{architecture.family}' with {' and '.join(found)} can be converted but not trained"
