"""Split a composed configuration into sections and lay a role's keys over each other, remembering their origin."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindllm.config.actor import ACTOR_KEYS
from mindllm.config.architecture import ARCHITECTURE_KEYS
from mindllm.config.compat import ACCEPTED, ONE_VALUE, REFUSED_VALUES, OneValue, same_value
from mindllm.config.foreign import unknown_key, unknown_section
from mindllm.config.foreign_names import SECTIONS_ELSEWHERE
from mindllm.config.pool import ResourcePool
from mindllm.config.roles import CRITIC_KEYS, CRITIC_ONLY_KEYS, REWARD_MODEL_KEYS, ROLE_KEYS, TOKENIZER_KEYS
from mindllm.config.sections import AlgorithmConfig, RewardConfig
from mindllm.config.training import TrainingConfig
from mindllm.errors import UserError

ACTOR = "actor_rollout_ref.actor_rollout"
REF = "actor_rollout_ref.ref"
CRITIC = "critic"
REWARD = "reward"
TRAINING_KEYS = frozenset(TrainingConfig.model_fields)
RULE_KEYS = frozenset(RewardConfig.model_fields)
SECTIONS = ("training", ACTOR, REF, CRITIC, REWARD, "algorithm", "resource_pool", "model")
KEYS_BY_SECTION: Mapping[str, Iterable[str]] = {
    "training": TRAINING_KEYS,
    ACTOR: ACTOR_KEYS,
    CRITIC: CRITIC_KEYS,
    REWARD: RULE_KEYS | REWARD_MODEL_KEYS,
    "algorithm": frozenset(AlgorithmConfig.model_fields),
    "resource_pool": frozenset(ResourcePool.model_fields),
}
ALLOWED_IN_ROLE: Mapping[str, frozenset[str]] = {
    "training": TRAINING_KEYS | ACTOR_KEYS | CRITIC_ONLY_KEYS | ARCHITECTURE_KEYS,
    ACTOR: ACTOR_KEYS | ARCHITECTURE_KEYS,
    REF: ROLE_KEYS | ARCHITECTURE_KEYS,
    CRITIC: CRITIC_KEYS | ARCHITECTURE_KEYS,
    REWARD: REWARD_MODEL_KEYS | ARCHITECTURE_KEYS,
    "model": (ROLE_KEYS - {"model"}) | TOKENIZER_KEYS | ARCHITECTURE_KEYS,
}


@dataclass
class Findings:
    """What was noticed on the way: sentences that refuse the run, and keys that have no effect in it."""

    errors: list[str] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)

    def stop_if_any(self) -> None:
        """Raise UserError with every sentence collected so far, one a line."""
        if self.errors:
            raise UserError("\n".join(dict.fromkeys(self.errors)))


@dataclass(frozen=True)
class Layered:
    """Values of one role and the dotted key that each was written under."""

    values: dict[str, Any]
    sources: dict[str, str]


def split_sections(raw: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every section's keys under its dotted name; null values are dropped, hyphens become underscores.

    Raises:
        UserError: a section is unknown, is not a mapping, or is written in two places.
    """
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in _hoisted(raw):
        if value is None or value == [] or value == {}:
            continue
        if name not in sections:
            raise UserError(_unknown_section(name, value))
        if not isinstance(value, Mapping):
            raise UserError(f"{name}: a section with keys is needed here, not {value!r}")
        if sections[name]:
            raise UserError(f"{name} is written both at the top level and under actor_rollout_ref; keep one")
        sections[name] = dict(value) if name == "model" else _plain_keys(name, value)
    return sections


def _hoisted(raw: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in raw.items():
        if name in ("actor_rollout", "ref"):
            yield f"actor_rollout_ref.{name}", value
        elif name == "actor_rollout_ref" and isinstance(value, Mapping):
            yield from ((f"actor_rollout_ref.{role}", keys) for role, keys in value.items())
        else:
            yield name, value


def _plain_keys(section: str, mapping: Mapping[Any, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in mapping.items():
        plain = str(key).replace("-", "_")
        if plain in keys:
            raise UserError(f"{section}.{plain} is written twice, with hyphens and with underscores; keep one")
        if value is not None:
            keys[plain] = value
    return keys


def _unknown_section(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return unknown_section(name, value, SECTIONS)
    if name in SECTIONS_ELSEWHERE:
        return unknown_section(name, {}, SECTIONS)
    homes = [section for section, keys in KEYS_BY_SECTION.items() if name in keys]
    return (
        f"{name}: this key needs its section; write {homes[0]}.{name}"
        if homes
        else unknown_key(name, SECTIONS, KEYS_BY_SECTION)
    )


def honoured_keys(
    path: str,
    keys: Mapping[str, Any],
    allowed: Iterable[str],
    findings: Findings,
    accepted: Mapping[str, str] = ACCEPTED,
    one_value: Mapping[str, OneValue] = ONE_VALUE,
) -> dict[str, Any]:
    """Return the keys of section ``path`` that are settings; note the others in ``findings``."""
    allowed = set(allowed)
    honoured: dict[str, Any] = {}
    for key, value in keys.items():
        where = f"{path}.{key}"
        if key in allowed:
            reason = REFUSED_VALUES.get((key, str(value).lower()))
            if reason:
                findings.errors.append(f"{where}: {reason}")
            else:
                honoured[key] = value
        elif key in accepted:
            findings.ignored[where] = accepted[key]
        elif key in one_value:
            _note_one_value(where, value, one_value[key], findings)
        else:
            elsewhere = {section: names for section, names in KEYS_BY_SECTION.items() if section != path}
            findings.errors.append(unknown_key(where, allowed, elsewhere))
    return honoured


def _note_one_value(where: str, value: Any, rule: OneValue, findings: Findings) -> None:
    if same_value(value, rule.value):
        findings.ignored[where] = rule.meaning
    else:
        findings.errors.append(f"{where} is {value!r}: {rule.otherwise}")


def lay_over(layers: Iterable[tuple[str, Mapping[str, Any]]], keys: Iterable[str]) -> Layered:
    """Merge ``layers`` (dotted name, keys), lowest first, keeping only ``keys``."""
    wanted = set(keys)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for path, mapping in layers:
        for key in wanted & mapping.keys():
            values[key] = mapping[key]
            sources[key] = f"{path}.{key}"
    return Layered(values, sources)
