"""What a model family is: which config fields it reads, and how its tensors are named on both sides."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mindllm.errors import UserError, did_you_mean
from mindllm.models.families.architecture import Architecture
from mindllm.models.families.experts import LATENT_FIELDS, MoeFields, parse_latent_attention
from mindllm.models.families.fields import boolean, dtype_name, positive_float, positive_int
from mindllm.models.families.known_fields import INERT, REFUSED, is_bookkeeping
from mindllm.models.families.rope import ROPE_FIELDS, parse_rope
from mindllm.models.families.weights import Rule, Weight, expand

_REQUIRED_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_HONOURED = ROPE_FIELDS | {
    *_REQUIRED_SIZES,
    *("architectures", "dtype", "head_dim", "initializer_range", "max_position_embeddings", "model_type"),
    *("id2label", "num_key_value_heads", "num_labels", "quantization_config", "rms_norm_eps", "tie_word_embeddings"),
    "torch_dtype",
}
_WINDOW_FIELDS = {
    "none": frozenset[str](),
    "optional": frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}),
    "always": frozenset({"sliding_window"}),
}


@dataclass(frozen=True)
class Family:
    """One model family, declared as data.

    ``defaults`` are the values transformers assumes for fields a config leaves out; ``fixed`` are fields with the only
    value that the family's forward pass expresses; ``rules`` list every tensor. ``sliding_window`` says which fields
    describe one: ``optional`` those of Qwen (a window on some layers only is refused), ``always`` the one field of
    Mistral. ``rope_types`` are the scalings of the rotary embedding that the family's own code has. In models with
    ``alibi_length`` instead of ``max_position_embeddings`` positions are ALiBi's. ``later_layers`` is the field that
    counts layers beyond the last, which predict further tokens and are left out. Fields of ``required`` must be stated,
    for the reason given, unless ``vocab_size`` is the ``released_vocab_size``.
    """

    name: str
    hf_class: str
    rules: tuple[Rule, ...]
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]
    irrelevant: frozenset[str] = field(default=frozenset())
    qkv_bias: bool = False
    qk_layernorm: bool = False
    sliding_window: Literal["none", "optional", "always"] = "none"
    rope_types: tuple[str, ...] = ("default", "llama3")
    partial_rotary: bool = False
    rotary_interleaved: bool = False
    alibi_length: str | None = None
    moe: MoeFields | None = None
    latent_attention: bool = False
    later_layers: str | None = None
    required: Mapping[str, str] = field(default_factory=dict)
    released_vocab_size: int | None = None

    @property
    def scoring_class(self) -> str:
        """Return the name of Hugging Face's class of this family with a score instead of a vocabulary."""
        return self.hf_class.replace("ForCausalLM", "ForSequenceClassification")

    def hf_name(self, mcore: str) -> str:
        """Return the Hugging Face name of the unstacked, unfused tensor that megatron-core calls ``mcore``."""
        return next(rule.hf[0] for rule in self.rules if rule.mcore == mcore)

    def weights(self, architecture: Architecture) -> Iterator[Weight]:
        """Yield every weight of a model of this family with its names and shapes on both sides."""
        return expand(self.rules, architecture)

    def parse(
        self, config: Mapping[str, Any], source: str = "config.json", ignored: Collection[str] = ()
    ) -> Architecture:
        """Return the architecture that ``config`` (a parsed ``config.json``) describes without its fields ``ignored``.

        Raises UserError, naming ``source`` and the field, when a field is missing, malformed, or asks for something
        that the model here would not do; also for an ignored one that the family reads or that is not there.
        """
        self._check_ignored(config, source, ignored)
        config = {key: value for key, value in config.items() if key not in ignored}
        self._check_fields(config, source)
        values = {**self.defaults, **{key: value for key, value in config.items() if value is not None}}
        scalar_head = self._has_scalar_head(config, source)
        sizes = {key: positive_int(values, key, source) for key in _REQUIRED_SIZES}
        num_layers = sizes["num_hidden_layers"]
        mla = parse_latent_attention(values, source) if self.latent_attention else None
        if mla is not None:
            values |= {"head_dim": mla.nope_dim + mla.rope_dim, "num_key_value_heads": sizes["num_attention_heads"]}
        head_dim, groups = _head_sizes(values, source)
        rope = parse_rope(config, self.defaults["rope_theta"], source, self.rope_types, self.partial_rotary)
        alibi = self.alibi_length in config and config.get("max_position_embeddings") is None
        length = "max_position_embeddings" if self.alibi_length is None or not alibi else self.alibi_length
        return Architecture(
            family=self.name,
            num_layers=num_layers,
            hidden_size=sizes["hidden_size"],
            ffn_hidden_size=sizes["intermediate_size"],
            num_attention_heads=sizes["num_attention_heads"],
            num_query_groups=groups,
            head_dim=head_dim,
            vocab_size=sizes["vocab_size"],
            max_position_embeddings=positive_int(values, length, source),
            norm_epsilon=positive_float(values, "rms_norm_eps", source),
            rotary_base=rope.base,
            tie_embeddings=boolean(values, "tie_word_embeddings", source) and not scalar_head,
            qkv_bias=self.qkv_bias,
            qk_layernorm=self.qk_layernorm,
            dtype=dtype_name(config, source),
            init_std=positive_float(values, "initializer_range", source),
            rope_scaling=rope.scaling,
            scalar_head=scalar_head,
            rotary_fraction=rope.fraction,
            rotary_interleaved=self.rotary_interleaved,
            sliding_window=self._window(config, values, source),
            position_embedding="alibi" if alibi else "rope",
            moe=None if self.moe is None else self.moe.parse(values, num_layers, source),
            mla=mla,
        )

    def _window(self, config: Mapping[str, Any], values: Mapping[str, Any], source: str) -> int | None:
        """Return how many tokens attention reaches back, None for all of them, which null means too."""
        if self.sliding_window == "optional":
            _refuse_sliding_window(values, source)
        is_null = "sliding_window" in config and config["sliding_window"] is None
        if self.sliding_window != "always" or is_null or not values.get("sliding_window"):
            return None
        return positive_int(values, "sliding_window", source)

    def _has_scalar_head(self, config: Mapping[str, Any], source: str) -> bool:
        """Return whether the model scores tokens with one number, refusing classifiers with several labels."""
        classes = config.get("architectures") or [self.hf_class]
        if self.hf_class in classes:
            return False
        if self.scoring_class not in classes:
            raise UserError(
                f"{source}: architectures is {classes}; of family '{self.name}' only {self.hf_class} and "
                f"{self.scoring_class} are known"
            )
        labels = config.get("id2label")
        num_labels = config.get("num_labels", 2) if labels is None else len(labels)
        if num_labels != 1:
            raise UserError(f"{source}: {self.scoring_class} has {num_labels} labels; a reward model has num_labels 1")
        return True

    def _own_fields(self) -> set[str]:
        """Return the fields that decide what a model of this family is."""
        own = _HONOURED | self.fixed.keys() | _WINDOW_FIELDS[self.sliding_window]
        own |= self.moe.names() if self.moe is not None else set()
        own |= LATENT_FIELDS if self.latent_attention else set()
        return own | {name for name in (self.alibi_length, self.later_layers) if name is not None}

    def _check_ignored(self, config: Mapping[str, Any], source: str, ignored: Collection[str]) -> None:
        """Refuse to ignore what the family reads, and what is not there."""
        for key in ignored:
            if key not in config:
                raise UserError(f"{source} has no field {key} to ignore{did_you_mean(key, config)}")
            if key in self._own_fields():
                raise UserError(f"{source}: {key} cannot be ignored, it decides what a model of '{self.name}' computes")

    def _check_fields(self, config: Mapping[str, Any], source: str) -> None:
        """Refuse every field that is neither honoured nor known to change nothing, and wrong values of fixed ones."""
        own = self._own_fields() | self.irrelevant
        fp8_block(config, source)  # refuses other quantisations
        for key, value in config.items():
            if value is not None and key not in own and not is_bookkeeping(key):
                self._check_foreign(key, value, own, source)
        for key, allowed in self.fixed.items():
            value = self.defaults.get(key) if config.get(key) is None else config[key]
            value = "silu" if value == "swish" else value  # transformers has it under both names
            if value is not None and value != allowed:
                raise UserError(f"{source}: {key} is {value!r}; family '{self.name}' supports {allowed!r} only")
        for key, reason in self.required.items():
            if key not in config and config.get("vocab_size") != self.released_vocab_size:
                raise UserError(f"{source}: field {key} is missing; {reason}")

    def _check_foreign(self, key: str, value: Any, own: Collection[str], source: str) -> None:
        """Refuse a field that the family does not read, unless its value asks for nothing that it would not do."""
        remedy = f"if it changes nothing in this model, add --ignore-config-field {key}"
        if key in REFUSED:
            raise UserError(f"{source}: {key}: {REFUSED[key].format(family=self.name)}; {remedy}")
        inert = INERT.get(key, ())
        if key == "layer_types" and isinstance(value, list):
            inert = (["full_attention"] * len(value),)
        if any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in inert):
            return
        if key == "layer_types":
            others = sorted({str(kind) for kind in value} - {"full_attention"}) if isinstance(value, list) else value
            reason = f"layer_types has {others}; family '{self.name}' supports 'full_attention' only"
        elif inert:
            allowed_values = " or ".join(repr(allowed) for allowed in inert)
            reason = f"{key} is {value!r}; family '{self.name}' supports {allowed_values} only"
        else:
            reason = f"field {key} = {value!r} is not known for family '{self.name}'{did_you_mean(key, own)}"
        raise UserError(f"{source}: {reason}; {remedy}")


def fp8_block(config: Mapping[str, Any], source: str = "config.json") -> tuple[int, int] | None:
    """Return the size of the blocks that share a scale when the weights are in fp8, None when they are not quantised.

    Raises UserError for every other quantisation.
    """
    fields = config.get("quantization_config")
    if fields is None:
        return None
    block = fields.get("weight_block_size") if isinstance(fields, Mapping) else None
    if fields.get("quant_method") != "fp8" or not isinstance(block, list) or len(block) != 2:
        raise UserError(
            f"{source}: quantization_config: quantised weights other than fp8 with a weight_block_size cannot be "
            "converted; use the bf16, fp16 or fp32 model"
        )
    return int(block[0]), int(block[1])


def _head_sizes(values: Mapping[str, Any], source: str) -> tuple[int, int]:
    """Return the size of a head and the number of key/value heads; both have defaults that depend on other fields."""
    heads, hidden = values["num_attention_heads"], values["hidden_size"]
    values = {"num_key_value_heads": heads, "head_dim": None, **values}
    if values["head_dim"] is None:
        if hidden % heads:
            raise UserError(f"{source}: hidden_size {hidden} is not divisible by num_attention_heads {heads}")
        values["head_dim"] = hidden // heads
    groups = positive_int(values, "num_key_value_heads", source)
    if heads % groups:
        raise UserError(f"{source}: num_attention_heads {heads} is not divisible by num_key_value_heads {groups}")
    return positive_int(values, "head_dim", source), groups


def _refuse_sliding_window(values: Mapping[str, Any], source: str) -> None:
    """Refuse configs in which some layer attends to a window only."""
    layer_types = set(values.get("layer_types") or ()) - {"full_attention"}
    if layer_types:
        raise UserError(f"{source}: layer_types has {sorted(layer_types)}; only 'full_attention' is supported")
    first = values.get("max_window_layers", 0)
    if values.get("use_sliding_window") and values.get("sliding_window") and first < values["num_hidden_layers"]:
        raise UserError(f"{source}: use_sliding_window is true for layers from {first} on; it is not supported")
