"""Architecture keys of a model file, and what they say that a checkpoint does not."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from mindllm.config.base import Float, Int, Section


class ArchitectureKeys(Section):
    """The shape of a model under Megatron's names. Nothing is built from it: the checkpoint's own shape is, after
    the two were compared."""

    num_layers: Int | None = Field(default=None, ge=1, description="Transformer layers.")
    hidden_size: Int | None = Field(default=None, ge=1, description="Width of the residual stream.")
    ffn_hidden_size: Int | None = Field(default=None, ge=1, description="Width inside the MLP.")
    num_attention_heads: Int | None = Field(default=None, ge=1, description="Query heads.")
    group_query_attention: bool | None = Field(default=None, description="Fewer key-value heads than query heads.")
    num_query_groups: Int | None = Field(default=None, ge=1, description="Key-value heads.")
    kv_channels: Int | None = Field(default=None, ge=1, description="Width of one head.")
    max_position_embeddings: Int | None = Field(default=None, ge=1, description="Longest window, in tokens.")
    vocab_size: Int | None = Field(default=None, ge=1, description="Vocabulary before padding.")
    padded_vocab_size: Int | None = Field(default=None, ge=1, description="Vocabulary after padding.")
    untie_embeddings_and_output_weights: bool | None = Field(default=None, description="Separate output matrix.")
    add_qkv_bias: bool | None = Field(default=None, description="Biases in the query, key and value projections.")
    qk_layernorm: bool | None = Field(default=None, description="Norms on queries and keys.")
    disable_bias_linear: Literal[True] | None = Field(default=None, description="No biases elsewhere; only `true`.")
    position_embedding_type: Literal["rope"] | None = Field(default=None, description="Only `rope`.")
    use_rotary_position_embeddings: Literal[True] | None = Field(default=None, description="Only `true`.")
    rotary_base: Float | None = Field(default=None, gt=0, description="Base of the rotary frequencies.")
    rope_scaling_type: Literal["llama3"] | None = Field(default=None, description="Only `llama3`; unset: no scaling.")
    rope_scaling_factor: Float | None = Field(default=None, gt=0, description="Stretch of the low frequencies.")
    low_freq_factor: Float | None = Field(default=None, gt=0, description="llama3 scaling: lower border.")
    high_freq_factor: Float | None = Field(default=None, gt=0, description="llama3 scaling: upper border.")
    original_max_position_embeddings: Int | None = Field(
        default=None, ge=1, description="llama3 scaling: window before stretching, in tokens."
    )
    normalization: Literal["RMSNorm"] | None = Field(default=None, description="Only `RMSNorm`.")
    norm_epsilon: Float | None = Field(default=None, gt=0, description="Term added to the variance.")
    swiglu: Literal[True] | None = Field(default=None, description="Gated SiLU in the MLP; only `true`.")
    attention_dropout: Float | None = Field(default=None, ge=0, le=0, description="Only 0.")
    hidden_dropout: Float | None = Field(default=None, ge=0, le=0, description="Only 0.")


ARCHITECTURE_KEYS = frozenset(ArchitectureKeys.model_fields)

_SAME_NAME = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "max_position_embeddings",
    "vocab_size",
    "rotary_base",
    "norm_epsilon",
    "qk_layernorm",
)
_RENAMED: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "kv_channels": lambda arch: arch["head_dim"],
    "add_qkv_bias": lambda arch: arch["qkv_bias"],
    "untie_embeddings_and_output_weights": lambda arch: not arch["tie_embeddings"],
    "group_query_attention": lambda arch: arch["num_query_groups"] < arch["num_attention_heads"],
}
_ROPE_SCALING = {
    "rope_scaling_factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}


def architecture_mismatches(model_keys: Mapping[str, Any], architecture: Mapping[str, Any]) -> list[str]:
    """Sentences about keys of a model file that disagree with a checkpoint; empty when all agree.

    Args:
        model_keys: architecture keys of a role (``ActorConfig.model_keys``).
        architecture: the checkpoint's ``Architecture`` as a dictionary (``dataclasses.asdict``).
    """
    found: dict[str, Any] = {key: architecture[key] for key in _SAME_NAME}
    found.update({key: read(architecture) for key, read in _RENAMED.items()})
    scaling = architecture["rope_scaling"]
    found["rope_scaling_type"] = None if scaling is None else "llama3"
    found.update({key: None if scaling is None else scaling[name] for key, name in _ROPE_SCALING.items()})
    mismatches = [
        f"{key} is {model_keys[key]} in the model file but {actual} in the checkpoint"
        for key, actual in found.items()
        if key in model_keys and not _agree(key, model_keys, actual)
    ]
    padded = model_keys.get("padded_vocab_size")
    if padded is not None and padded < architecture["vocab_size"]:
        mismatches.append(
            f"padded_vocab_size is {padded} in the model file but the checkpoint has a vocabulary of "
            f"{architecture['vocab_size']}"
        )
    return mismatches


def _agree(key: str, model_keys: Mapping[str, Any], actual: Any) -> bool:
    wanted = model_keys[key]
    if key == "group_query_attention":
        # `true` with as many groups as heads is how some files write plain multi-head attention.
        heads = model_keys.get("num_attention_heads", 0)
        return bool(wanted == actual) or (wanted and model_keys.get("num_query_groups") == heads)
    if key == "num_query_groups" and model_keys.get("group_query_attention") is False:
        return True  # Megatron reads the number of groups only where grouping is on.
    if isinstance(wanted, float) and isinstance(actual, int | float):
        return bool(abs(wanted - actual) <= 1e-6 * max(abs(wanted), abs(actual)))
    return bool(wanted == actual)
