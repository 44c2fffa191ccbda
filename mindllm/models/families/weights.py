"""Which tensors a model has under both naming schemes, as data: the rules that the family files list."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mindllm.models.families.architecture import Architecture

Transform = Literal["identity", "qkv", "concat"]


@dataclass(frozen=True)
class Rule:
    """One megatron-core tensor and the Hugging Face tensors it is made of.

    ``hf_shapes`` holds dimension names (keys of :func:`dimensions`), one tuple per name in ``hf``. The mcore tensor
    has the sum of their first dimensions and the same other ones. Names with ``{layer}`` exist once per layer;
    megatron-core stores those stacked, under one key with a leading ``[num_layers]`` axis.
    """

    mcore: str
    hf: tuple[str, ...]
    hf_shapes: tuple[tuple[str, ...], ...]
    transform: Transform = "identity"


@dataclass(frozen=True)
class Weight:
    """A :class:`Rule` applied to one architecture and, for stacked tensors, to one layer.

    Shapes are of the true vocabulary and without the layer axis. ``layer`` is None for tensors outside the layers.
    """

    mcore: str
    layer: int | None
    mcore_shape: tuple[int, ...]
    hf: tuple[str, ...]
    hf_shapes: tuple[tuple[int, ...], ...]
    transform: Transform
    has_vocab_rows: bool


def dimensions(architecture: Architecture) -> dict[str, int]:
    """Return the size of every dimension name that rules may use."""
    return {
        "hidden": architecture.hidden_size,
        "ffn": architecture.ffn_hidden_size,
        "query": architecture.num_attention_heads * architecture.head_dim,
        "kv": architecture.num_query_groups * architecture.head_dim,
        "head_dim": architecture.head_dim,
        "vocab": architecture.vocab_size,
        "one": 1,
    }


def expand(rules: tuple[Rule, ...], architecture: Architecture) -> Iterator[Weight]:
    """Yield every weight of the model in the order of its rules, a rule's layers one after the other.

    The rule of the output layer is left out when it is tied, and is :data:`SCORE` under a scalar head.
    """
    sizes = dimensions(architecture)
    for rule in rules:
        if rule.mcore == OUTPUT_KEY:
            if architecture.tie_embeddings:
                continue
            rule = SCORE if architecture.scalar_head else rule
        shapes = tuple(tuple(sizes[name] for name in shape) for shape in rule.hf_shapes)
        merged = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        stacked = "{layer}" in rule.hf[0]
        for layer in range(architecture.num_layers) if stacked else (None,):
            names = tuple(name.format(layer=layer) for name in rule.hf)
            has_vocab_rows = rule.hf_shapes[0][0] == "vocab"
            yield Weight(rule.mcore, layer, merged, names, shapes, rule.transform, has_vocab_rows)


EMBEDDING_KEY, OUTPUT_KEY = "embedding.word_embeddings.weight", "output_layer.weight"
EMBEDDING = Rule(EMBEDDING_KEY, ("model.embed_tokens.weight",), (("vocab", "hidden"),))
FINAL_NORM = Rule("decoder.final_layernorm.weight", ("model.norm.weight",), (("hidden",),))
OUTPUT = Rule(OUTPUT_KEY, ("lm_head.weight",), (("vocab", "hidden"),))
SCORE = Rule(OUTPUT_KEY, ("score.weight",), (("one", "hidden"),))  # takes the output's place under a scalar head

_MCORE, _HF = "decoder.layers.", "model.layers.{layer}."
_QKV_PROJECTIONS = tuple(_HF + f"self_attn.{name}_proj." for name in "qkv")

QKV_WEIGHT = Rule(
    _MCORE + "self_attention.linear_qkv.weight",
    tuple(prefix + "weight" for prefix in _QKV_PROJECTIONS),
    (("query", "hidden"), ("kv", "hidden"), ("kv", "hidden")),
    transform="qkv",
)
QKV_BIAS = Rule(
    _MCORE + "self_attention.linear_qkv.bias",
    tuple(prefix + "bias" for prefix in _QKV_PROJECTIONS),
    (("query",), ("kv",), ("kv",)),
    transform="qkv",
)
QK_NORMS = tuple(
    Rule(_MCORE + f"self_attention.{x}_layernorm.weight", (_HF + f"self_attn.{x}_norm.weight",), (("head_dim",),))
    for x in "qk"
)
ATTENTION_OUTPUT = Rule(
    _MCORE + "self_attention.linear_proj.weight", (_HF + "self_attn.o_proj.weight",), (("hidden", "query"),)
)
# Norms carry the names of the Transformer Engine layer spec, which fuses them into the linear layer that follows.
ATTENTION_NORM = Rule(
    _MCORE + "self_attention.linear_qkv.layer_norm_weight", (_HF + "input_layernorm.weight",), (("hidden",),)
)
MLP_NORM = Rule(_MCORE + "mlp.linear_fc1.layer_norm_weight", (_HF + "post_attention_layernorm.weight",), (("hidden",),))
GATED_MLP = (
    Rule(
        _MCORE + "mlp.linear_fc1.weight",
        (_HF + "mlp.gate_proj.weight", _HF + "mlp.up_proj.weight"),
        (("ffn", "hidden"), ("ffn", "hidden")),
        transform="concat",
    ),
    Rule(_MCORE + "mlp.linear_fc2.weight", (_HF + "mlp.down_proj.weight",), (("hidden", "ffn"),)),
)

LLAMA_RULES = (EMBEDDING, ATTENTION_NORM, QKV_WEIGHT, ATTENTION_OUTPUT, MLP_NORM, *GATED_MLP, FINAL_NORM, OUTPUT)
