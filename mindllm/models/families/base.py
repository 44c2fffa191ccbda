"""What a model family is: which config fields it reads, and how its tensors are named on both sides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindllm.errors import UserError, did_you_mean
from mindllm.models.families.architecture import Architecture
from mindllm.models.families.rope import ROPE_FIELDS, parse_rope
from mindllm.models.families.weights import Rule, Weight, expand

_REQUIRED_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_HONOURED = ROPE_FIELDS | {
    *_REQUIRED_SIZES,
    *("architectures", "dtype", "head_dim", "initializer_range", "max_position_embeddings", "model_type"),
    *("id2label", "num_key_value_heads", "num_labels", "rms_norm_eps", "tie_word_embeddings", "torch_dtype"),
}
_SLIDING_WINDOW = frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
_DTYPES = ("float32", "bfloat16", "float16")

# Fields that say nothing about the weights or the forward pass of a decoder: special tokens and generation
# (generation_config.json and the tokenizer have them), task heads, bookkeeping.
_IRRELEVANT = frozenset(
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path add_cross_attention "
    "bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cross_attention_hidden_size "
    "decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id "
    "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id is_decoder "
    "is_encoder_decoder label2id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams "
    "num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix problem_type "
    "pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id "
    "suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p "
    "torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache".split()
)
_REFUSED = {
    "quantization_config": "quantised weights cannot be converted; use the bf16, fp16 or fp32 model",
    "auto_map": "code shipped with a model is never run; remove the field if the weights are a plain model's",
}


@dataclass(frozen=True)
class Family:
    """One model family, declared as data.

    ``defaults`` are the values transformers assumes for fields a config leaves out; ``fixed`` are fields with the only
    value that the family's forward pass expresses; ``rules`` list every tensor.
    """

    name: str
    hf_class: str
    rules: tuple[Rule, ...]
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]
    irrelevant: frozenset[str] = field(default=frozenset())
    qkv_bias: bool = False
    qk_layernorm: bool = False

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

    def parse(self, config: Mapping[str, Any], source: str = "config.json") -> Architecture:
        """Return the architecture that ``config`` (a parsed ``config.json``) describes.

        Raises UserError, naming ``source`` and the field, when a field is missing, malformed, or asks for something
        that the model here would not do.
        """
        self._check_fields(config, source)
        values = {**self.defaults, **{key: value for key, value in config.items() if value is not None}}
        scalar_head = self._has_scalar_head(config, source)
        sizes = {key: _positive_int(values, key, source) for key in _REQUIRED_SIZES}
        _refuse_sliding_window(values, source)
        heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
        values.setdefault("num_key_value_heads", heads)
        if values.get("head_dim") is None:
            if hidden % heads:
                raise UserError(f"{source}: hidden_size {hidden} is not divisible by num_attention_heads {heads}")
            values["head_dim"] = hidden // heads
        groups = _positive_int(values, "num_key_value_heads", source)
        if heads % groups:
            raise UserError(f"{source}: num_attention_heads {heads} is not divisible by num_key_value_heads {groups}")
        rotary_base, rope_scaling = parse_rope(config, self.defaults["rope_theta"], source)
        return Architecture(
            family=self.name,
            num_layers=sizes["num_hidden_layers"],
            hidden_size=hidden,
            ffn_hidden_size=sizes["intermediate_size"],
            num_attention_heads=heads,
            num_query_groups=groups,
            head_dim=_positive_int(values, "head_dim", source),
            vocab_size=sizes["vocab_size"],
            max_position_embeddings=_positive_int(values, "max_position_embeddings", source),
            norm_epsilon=_positive_float(values, "rms_norm_eps", source),
            rotary_base=rotary_base,
            tie_embeddings=_boolean(values, "tie_word_embeddings", source) and not scalar_head,
            qkv_bias=self.qkv_bias,
            qk_layernorm=self.qk_layernorm,
            dtype=_dtype(config, source),
            init_std=_positive_float(values, "initializer_range", source),
            rope_scaling=rope_scaling,
            scalar_head=scalar_head,
        )

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

    def _check_fields(self, config: Mapping[str, Any], source: str) -> None:
        """Refuse every field that is neither honoured nor irrelevant, and wrong values of fixed ones."""
        known = _HONOURED | _IRRELEVANT | self.irrelevant | self.fixed.keys()
        for key, value in config.items():
            if value is None or key in known:
                continue
            if key in _REFUSED:
                raise UserError(f"{source}: {key}: {_REFUSED[key]}")
            if key not in _SLIDING_WINDOW or "use_sliding_window" not in self.defaults:
                hint = did_you_mean(key, known)
                raise UserError(f"{source}: field {key} = {value!r} is not known for family '{self.name}'{hint}")
        for key, allowed in self.fixed.items():
            if config.get(key) is not None and config[key] != allowed:
                raise UserError(f"{source}: {key} is {config[key]!r}; family '{self.name}' supports {allowed!r} only")


def _refuse_sliding_window(values: Mapping[str, Any], source: str) -> None:
    """Refuse configs in which some layer attends to a window only."""
    layer_types = set(values.get("layer_types") or ()) - {"full_attention"}
    if layer_types:
        raise UserError(f"{source}: layer_types has {sorted(layer_types)}; only 'full_attention' is supported")
    first = values.get("max_window_layers", 0)
    if values.get("use_sliding_window") and values.get("sliding_window") and first < values["num_hidden_layers"]:
        raise UserError(f"{source}: use_sliding_window is true for layers from {first} on; it is not supported")


def _positive_int(values: Mapping[str, Any], key: str, source: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{source}: {key} is {value!r}; a positive whole number is needed")
    return value


def _positive_float(values: Mapping[str, Any], key: str, source: str) -> float:
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UserError(f"{source}: {key} is {value!r}; a positive number is needed")
    return float(value)


def _boolean(values: Mapping[str, Any], key: str, source: str) -> bool:
    value = values.get(key)
    if not isinstance(value, bool):
        raise UserError(f"{source}: {key} is {value!r}; true or false is needed")
    return value


def _dtype(config: Mapping[str, Any], source: str) -> str:
    """Return the stated dtype; transformers writes ``dtype``, and wrote ``torch_dtype`` before."""
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise UserError(f"{source}: dtype is {value!r}; supported are {', '.join(_DTYPES)}")
    return name
