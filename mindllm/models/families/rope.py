"""Rotary-embedding fields of a Hugging Face config, in both forms that transformers has written."""

from collections.abc import Mapping
from typing import Any

from mindllm.errors import UserError
from mindllm.models.families.architecture import Llama3RopeScaling

ROPE_FIELDS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
_LLAMA3_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def parse_rope(config: Mapping[str, Any], default_theta: float, source: str) -> tuple[float, Llama3RopeScaling | None]:
    """Return the rotary base and the frequency scaling of ``config``.

    Reads the older form (``rope_theta`` beside ``rope_scaling``) and the newer one (everything in
    ``rope_parameters``). Raises UserError, naming the field, for scaling types other than ``default`` and ``llama3``
    and for a rotary embedding of a part of the head.
    """
    old, new = (_flat(config, name, source) for name in ("rope_scaling", "rope_parameters"))
    if old and new and {**new, **old} != new:
        raise UserError(f"{source}: rope_scaling {old} and rope_parameters {new} disagree; keep one of them")
    name, fields = ("rope_parameters", new) if new else ("rope_scaling", old)
    if (fields.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UserError(f"{source}: partial_rotary_factor other than 1.0 is not supported")

    bases = {value for value in (fields.get("rope_theta"), config.get("rope_theta")) if value is not None}
    if len(bases) > 1:
        raise UserError(f"{source}: rope_theta is {config['rope_theta']} but {name}.rope_theta {fields['rope_theta']}")
    base = bases.pop() if bases else default_theta
    if not isinstance(base, int | float) or base <= 0:
        raise UserError(f"{source}: rope_theta is {base!r}; a positive number is needed")
    return float(base), _parse_scaling(fields, name, source)


def _flat(config: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    """Return the rope parameters under ``name`` (empty when absent), refusing a set per kind of layer."""
    fields = config.get(name) or {}
    if not isinstance(fields, Mapping) or any(isinstance(value, Mapping) for value in fields.values()):
        raise UserError(f"{source}: {name} is {fields!r}; one flat set of rope parameters is supported")
    return fields


def _parse_scaling(fields: Mapping[str, Any], name: str, source: str) -> Llama3RopeScaling | None:
    """Return the scaling described by ``fields``, or None for plain rotary embeddings."""
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise UserError(f"{source}: {name}.rope_type is {kind!r}; supported are 'default' and 'llama3'")
    own = set(_LLAMA3_FIELDS) if kind == "llama3" else set()
    known = own | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    unknown = sorted(key for key, value in fields.items() if key not in known and value is not None)
    if unknown:
        raise UserError(f"{source}: {name}.{unknown[0]} is not supported with rope_type '{kind}'")
    if kind == "default":
        return None

    missing = [key for key in _LLAMA3_FIELDS if not isinstance(fields.get(key), int | float)]
    if missing:
        raise UserError(f"{source}: {name} of type 'llama3' needs the number {missing[0]}")
    factor, low, high = (float(fields[key]) for key in _LLAMA3_FIELDS[:3])
    if factor < 1.0 or low >= high:
        raise UserError(f"{source}: {name} needs factor >= 1 and low_freq_factor < high_freq_factor, found {fields}")
    return Llama3RopeScaling(factor, low, high, int(fields["original_max_position_embeddings"]))
