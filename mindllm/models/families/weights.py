"""Which tensors a model has under both naming schemes, as data: the rules that the family files list."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mindllm.models.families.architecture import Architecture

Transform = Literal["identity", "qkv", "concat", "unit_rows"]
Layers = Literal["all", "dense", "moe"]


@dataclass(frozen=True)
class Rule:
    """One megatron-core tensor and the Hugging Face tensors it is made of.

    ``hf_shapes`` holds dimension names (keys of :func:`dimensions`, or sums of them as ``"query+kv+kv"``), one tuple
    per name in ``hf``. The mcore tensor has the sum of their first dimensions and the same other ones. Names with
    ``{layer}`` exist once per layer of the kind ``layers``, names with ``{expert}`` once per expert. A rule with
    ``only_with`` exists for architectures in which that property (see :func:`properties`) holds. ``parallel`` is the
    axis that tensor parallelism splits; None: every rank has all of it. With ``keeps_dtype`` the tensor is not cast
    with the rest of the model.
    """

    mcore: str
    hf: tuple[str, ...]
    hf_shapes: tuple[tuple[str, ...], ...]
    transform: Transform = "identity"
    parallel: int | None = None
    layers: Layers = "all"
    only_with: str | None = None
    keeps_dtype: bool = False


@dataclass(frozen=True)
class Weight:
    """A :class:`Rule` applied to one architecture, layer and expert.

    ``mcore`` is the key in a torch_dist checkpoint, in which the tensor lies at ``index`` of axes ``extent`` that are
    stacked in front of ``mcore_shape``. Shapes are of the true vocabulary. ``layer`` and ``expert`` are None for
    tensors that are not of one. ``blocks`` are the rows of each part that tensor parallelism splits on its own: gate
    and up projection have one each.
    """

    mcore: str
    layer: int | None
    expert: int | None
    index: tuple[int, ...]
    extent: tuple[int, ...]
    mcore_shape: tuple[int, ...]
    blocks: tuple[int, ...]
    hf: tuple[str, ...]
    hf_shapes: tuple[tuple[int, ...], ...]
    transform: Transform
    parallel: int | None
    has_vocab_rows: bool
    keeps_dtype: bool


def dimensions(architecture: Architecture) -> dict[str, int]:
    """Return the size of every dimension name that rules may use."""
    heads, groups = architecture.num_attention_heads, architecture.num_query_groups
    sizes = {
        "one": 1,
        "hidden": architecture.hidden_size,
        "ffn": architecture.ffn_hidden_size,
        "query": heads * architecture.head_dim,
        "kv": groups * architecture.head_dim,
        "head_dim": architecture.head_dim,
        "vocab": architecture.vocab_size,
    }
    if architecture.moe is not None:
        sizes["experts"] = architecture.moe.num_experts
        sizes["expert_ffn"] = architecture.moe.ffn_hidden_size
        sizes["shared_ffn"] = architecture.moe.shared_ffn_hidden_size
    if architecture.mla is not None:
        mla = architecture.mla
        sizes["query_rank"] = mla.query_rank or 0
        sizes["kv_rank"], sizes["rope"] = mla.kv_rank, mla.rope_dim
        sizes["query"] = heads * (mla.nope_dim + mla.rope_dim)
        sizes["key_value_up"] = heads * (mla.nope_dim + mla.value_dim)
        sizes["value"] = heads * mla.value_dim
    return sizes


def properties(architecture: Architecture) -> set[str]:
    """Return the names of the optional features that ``architecture`` has."""
    moe, mla = architecture.moe, architecture.mla
    features = {
        "qkv_bias": architecture.qkv_bias,
        "qk_layernorm": architecture.qk_layernorm,
        "shared_experts": moe is not None and moe.shared_ffn_hidden_size > 0,
        "expert_bias": moe is not None and moe.expert_bias,
        "query_rank": mla is not None and mla.query_rank is not None,
        "no_query_rank": mla is not None and mla.query_rank is None,
    }
    return {name for name, present in features.items() if present}


def expand(rules: tuple[Rule, ...], architecture: Architecture) -> Iterator[Weight]:
    """Yield every weight of the model in the order of its rules, a rule's layers and experts one after the other.

    The rule of the output layer is left out when it is tied, and is :data:`SCORE` under a scalar head.
    """
    sizes, features = dimensions(architecture), properties(architecture)
    for rule in rules:
        if rule.mcore == OUTPUT_KEY:
            if architecture.tie_embeddings:
                continue
            rule = SCORE if architecture.scalar_head else rule
        if rule.only_with is None or rule.only_with in features:
            yield from _expand_rule(rule, architecture, sizes)


def _expand_rule(rule: Rule, architecture: Architecture, sizes: dict[str, int]) -> Iterator[Weight]:
    shapes = tuple(tuple(_size(name, sizes) for name in shape) for shape in rule.hf_shapes)
    rows = sum(shape[0] for shape in shapes)
    is_gated = rule.mcore.endswith("linear_fc1.weight")
    experts = range(sizes["experts"]) if "{expert}" in rule.hf[0] else (None,)
    for layer in _layers(rule, architecture):
        # megatron-core stacks the layers of a model only when they all have the same tensors.
        stacked = layer is not None and architecture.has_uniform_layers
        mcore = rule.mcore if stacked or layer is None else rule.mcore.replace(LAYERS, f"{LAYERS}{layer}.", 1)
        for expert in experts:
            places = [(layer, architecture.num_layers)] if stacked else []
            places += [] if expert is None else [(expert, sizes["experts"])]
            yield Weight(
                mcore=mcore,
                layer=layer,
                expert=expert,
                index=tuple(index for index, _ in places if index is not None),
                extent=tuple(extent for _, extent in places),
                mcore_shape=(rows, *shapes[0][1:]),
                blocks=(rows // 2, rows // 2) if is_gated else (rows,),
                hf=tuple(name.format(layer=layer, expert=expert) for name in rule.hf),
                hf_shapes=shapes,
                transform=rule.transform,
                parallel=rule.parallel,
                has_vocab_rows=rule.hf_shapes[0][0] == "vocab",
                keeps_dtype=rule.keeps_dtype,
            )


def _layers(rule: Rule, architecture: Architecture) -> Iterator[int | None]:
    """Yield the layers that have the rule's tensor; None for a tensor outside the layers."""
    if "{layer}" not in rule.hf[0]:
        yield None
        return
    for layer in range(architecture.num_layers):
        if rule.layers == "all" or (rule.layers == "moe") == architecture.is_moe_layer(layer):
            yield layer


def _size(name: str, sizes: dict[str, int]) -> int:
    return sum(sizes[part] for part in name.split("+"))


LAYERS = "decoder.layers."
EMBEDDING_KEY, OUTPUT_KEY = "embedding.word_embeddings.weight", "output_layer.weight"
EMBEDDING = Rule(EMBEDDING_KEY, ("model.embed_tokens.weight",), (("vocab", "hidden"),), parallel=0)
FINAL_NORM = Rule("decoder.final_layernorm.weight", ("model.norm.weight",), (("hidden",),))
OUTPUT = Rule(OUTPUT_KEY, ("lm_head.weight",), (("vocab", "hidden"),), parallel=0)
SCORE = Rule(OUTPUT_KEY, ("score.weight",), (("one", "hidden"),))  # takes the output's place under a scalar head

_HF = "model.layers.{layer}."
_QKV_PROJECTIONS = tuple(_HF + f"self_attn.{name}_proj." for name in "qkv")

QKV_WEIGHT = Rule(
    LAYERS + "self_attention.linear_qkv.weight",
    tuple(prefix + "weight" for prefix in _QKV_PROJECTIONS),
    (("query", "hidden"), ("kv", "hidden"), ("kv", "hidden")),
    transform="qkv",
    parallel=0,
)
QKV_BIAS = Rule(
    LAYERS + "self_attention.linear_qkv.bias",
    tuple(prefix + "bias" for prefix in _QKV_PROJECTIONS),
    (("query",), ("kv",), ("kv",)),
    transform="qkv",
    parallel=0,
    only_with="qkv_bias",
)
QK_NORMS = tuple(
    Rule(LAYERS + f"self_attention.{x}_layernorm.weight", (_HF + f"self_attn.{x}_norm.weight",), (("head_dim",),))
    for x in "qk"
)
ATTENTION_OUTPUT = Rule(
    LAYERS + "self_attention.linear_proj.weight", (_HF + "self_attn.o_proj.weight",), (("hidden", "query"),), parallel=1
)
# Norms carry the names of the Transformer Engine layer spec, which fuses them into the linear layer that follows.
ATTENTION_NORM = Rule(
    LAYERS + "self_attention.linear_qkv.layer_norm_weight", (_HF + "input_layernorm.weight",), (("hidden",),)
)
_BEFORE_MLP = (_HF + "post_attention_layernorm.weight",)
MLP_NORM = Rule(LAYERS + "mlp.linear_fc1.layer_norm_weight", _BEFORE_MLP, (("hidden",),), layers="dense")
MOE_NORM = Rule(LAYERS + "pre_mlp_layernorm.weight", _BEFORE_MLP, (("hidden",),), layers="moe")


def gated_mlp(
    mcore: str,
    hf: str,
    size: str,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    layers: Layers = "dense",
    only_with: str | None = None,
) -> tuple[Rule, ...]:
    """Return the rules of one gated MLP: modules ``mcore``.linear_fc* and ``hf``.``names``, ``size`` wide inside."""
    gate, up, down = (f"{hf}.{name}.weight" for name in names)
    shapes = ((size, "hidden"), (size, "hidden"))
    fc1 = Rule(f"{mcore}.linear_fc1.weight", (gate, up), shapes, "concat", 0, layers, only_with)
    fc2 = Rule(f"{mcore}.linear_fc2.weight", (down,), (("hidden", size),), "identity", 1, layers, only_with)
    return fc1, fc2


GATED_MLP = gated_mlp(LAYERS + "mlp", _HF + "mlp", "ffn")
EXPERTS = gated_mlp(LAYERS + "mlp.experts.experts", _HF + "mlp.experts.{expert}", "expert_ffn", layers="moe")
ROUTER = Rule(LAYERS + "mlp.router.weight", (_HF + "mlp.gate.weight",), (("experts", "hidden"),), layers="moe")

OUTER = (EMBEDDING, FINAL_NORM, OUTPUT)
ATTENTION = (ATTENTION_NORM, QKV_WEIGHT, ATTENTION_OUTPUT)
DENSE_MLP = (MLP_NORM, *GATED_MLP)
MOE_MLP = (MOE_NORM, ROUTER, *EXPERTS)
LLAMA_RULES = (*OUTER, *ATTENTION, *DENSE_MLP)
