"""Rotary-embedding fields of a Hugging Face config, in both forms that transformers has written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindllm.errors import UserError
from mindllm.models.families.architecture import Llama3RopeScaling, YarnRopeScaling

ROPE_FIELDS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
_SCALING_FIELDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
}
_YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}


@dataclass(frozen=True)
class Rope:
    """Rotary base, scaling of the frequencies, and the fraction of each head that is rotated."""

    base: float
    scaling: Llama3RopeScaling | YarnRopeScaling | None
    fraction: float


def parse_rope(
    config: Mapping[str, Any],
    default_theta: float,
    source: str,
    types: tuple[str, ...] = ("default", "llama3"),
    partial: bool = False,
) -> Rope:
    """Return the rotary embedding of ``config``.

    Reads the older form (``rope_theta`` beside ``rope_scaling``) and the newer one (everything in
    ``rope_parameters``). Raises UserError, naming the field, for scaling types other than ``types`` and, unless
    ``partial``, for a rotary embedding of a part of the head.
    """
    old, new = (_flat(config, name, source) for name in ("rope_scaling", "rope_parameters"))
    if old and new and {**new, **old} != new:
        raise UserError(f"{source}: rope_scaling {old} and rope_parameters {new} disagree; keep one of them")
    name, fields = ("rope_parameters", new) if new else ("rope_scaling", old)
    fraction = float(fields.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    if fraction != 1.0 and not (partial and 0.0 < fraction < 1.0):
        raise UserError(f"{source}: partial_rotary_factor {fraction} is not supported")

    bases = {value for value in (fields.get("rope_theta"), config.get("rope_theta")) if value is not None}
    if len(bases) > 1:
        raise UserError(f"{source}: rope_theta is {config['rope_theta']} but {name}.rope_theta {fields['rope_theta']}")
    base = bases.pop() if bases else default_theta
    if not isinstance(base, int | float) or base <= 0:
        raise UserError(f"{source}: rope_theta is {base!r}; a positive number is needed")
    return Rope(float(base), _parse_scaling(fields, name, source, types), fraction)


def _flat(config: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    """Return the rope parameters under ``name`` (empty when absent), refusing a set per kind of layer."""
    fields = config.get(name) or {}
    if not isinstance(fields, Mapping) or any(isinstance(value, Mapping) for value in fields.values()):
        raise UserError(f"{source}: {name} is {fields!r}; one flat set of rope parameters is supported")
    return fields


def _parse_scaling(
    fields: Mapping[str, Any], name: str, source: str, types: tuple[str, ...]
) -> Llama3RopeScaling | YarnRopeScaling | None:
    """Return the scaling described by ``fields``, or None for plain rotary embeddings."""
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind == "linear" and fields.get("factor") == 1:
        return None  # positions divided by one
    if kind not in types:
        allowed = " and ".join(repr(each) for each in types)
        raise UserError(f"{source}: {name}.rope_type is {kind!r}; supported are {allowed}")
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *_SCALING_FIELDS[kind]}
    unknown = sorted(key for key, value in fields.items() if key not in known and value is not None)
    if unknown:
        raise UserError(f"{source}: {name}.{unknown[0]} is not supported with rope_type '{kind}'")
    if kind in ("default", "dynamic"):  # dynamic: plain up to max_position_embeddings, beyond which nobody goes here
        return None

    values = {**_YARN_DEFAULTS, **fields} if kind == "yarn" else fields
    missing = [key for key in _SCALING_FIELDS[kind] if not isinstance(values.get(key), int | float)]
    if missing:
        raise UserError(f"{source}: {name} of type '{kind}' needs the number {missing[0]}")
    numbers = {key: float(values[key]) for key in _SCALING_FIELDS[kind]}
    length = int(numbers.pop("original_max_position_embeddings"))
    ordered = ("beta_slow", "beta_fast") if kind == "yarn" else ("low_freq_factor", "high_freq_factor")
    if numbers["factor"] < 1.0 or numbers[ordered[0]] >= numbers[ordered[1]]:
        raise UserError(f"{source}: {name} needs factor >= 1 and {ordered[0]} < {ordered[1]}, found {fields}")
    scaling = YarnRopeScaling if kind == "yarn" else Llama3RopeScaling
    return scaling(original_max_position_embeddings=length, **numbers)
