"""Command-line ``key=value`` overrides, applied in order on top of what the files say."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import yaml

from mindllm.config.layers import ACTOR, CRITIC, REF, REWARD, RULE_KEYS, TRAINING_KEYS
from mindllm.errors import UserError

_ROLE_ALIASES = {"actor_rollout": ACTOR, "ref": REF}


def is_file_choice(override: str) -> bool:
    """Whether an override picks model files (``model=[a,b]``) rather than setting a key."""
    return override.split("=", 1)[0].lstrip("+~") == "model"


def apply_overrides(raw: MutableMapping[str, Any], overrides: list[str]) -> None:
    """Set (``key=value``) or remove (``~key``) keys of ``raw`` in place; a leading ``+`` is accepted and not needed.

    A role's key set in ``training`` wins over the role sections of the files, as the command line wins over all.

    Raises:
        UserError: an override has no ``=``, or its path runs into something that is not a section.
    """
    _hoist_roles(raw)
    for override in overrides:
        key, equals, text = override.partition("=")
        removes = key.startswith("~")
        if not equals and not removes:
            raise UserError(f"'{override}' is not an override: write key=value, e.g. training.lr=1e-5")
        _refuse_hydras_own(key.lstrip("+~"), override)
        path = _canonical(key.lstrip("+~").strip())
        if not all(path):
            raise UserError(f"'{override}' is not an override: write key=value, e.g. training.lr=1e-5")
        if not removes:
            _set(raw, path, _value(text), override)
        if removes or (path[0] == "training" and len(path) == 2 and path[1] not in TRAINING_KEYS):
            if removes and not _has(raw, path):
                raise UserError(f"override '{override}': there is no such key to remove")
            stale = [path] if removes else [[*role.split("."), path[1]] for role in _roles_that_read(path[1])]
            for old in stale:
                _remove(raw, old)


def _refuse_hydras_own(key: str, override: str) -> None:
    if key.partition("/")[0].partition(".")[0] == "hydra":
        raise UserError(f"'{override}': hydra has nothing to set here; training.run_dir says where a run lies")
    if "/" in key:
        raise UserError(f"'{override}' is not an override: write {key.replace('/', '.')}=VALUE, with dots")


def _roles_that_read(key: str) -> list[str]:
    """Sections that a key of ``training`` is laid under; the reward model's tokenizer is its own."""
    in_reward = key not in RULE_KEYS and key != "tokenizer_name_or_path"
    return [ACTOR, REF, CRITIC, *([REWARD] if in_reward else [])]


def _hoist_roles(raw: MutableMapping[str, Any]) -> None:
    """Move roles at the top level to where an override looks for them; one written twice is left to be refused."""
    for name in _ROLE_ALIASES:
        roles = raw.get("actor_rollout_ref") or {}
        if name in raw and isinstance(roles, Mapping) and name not in roles:
            raw["actor_rollout_ref"] = {**roles, name: raw.pop(name)}


def _canonical(key: str) -> list[str]:
    head, *rest = key.split(".")
    path = [*_ROLE_ALIASES[head].split("."), *rest] if head in _ROLE_ALIASES else [head, *rest]
    return path if path[0] == "model" else [part.replace("-", "_") for part in path]


def _value(text: str) -> Any:
    """Read a value as hydra does; what hydra takes for a sweep or cannot read is YAML or plain text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={text}")
        if not parsed.is_sweep_override():
            return parsed.value()
    except (HydraException, ValueError):
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _matching(section: Mapping[Any, Any], part: str) -> Any:
    """The key of ``section`` that ``part`` means: files may write hyphens where overrides have underscores."""
    return next((key for key in section if str(key) == part or str(key).replace("-", "_") == part), part)


def _set(raw: MutableMapping[str, Any], path: list[str], value: Any, override: str) -> None:
    section: Any = raw
    for part in path[:-1]:
        section = _descend(section, part, override)
    if isinstance(section, list):
        section[_index(section, path[-1], override)] = value
    else:
        section[_matching(section, path[-1])] = value


def _descend(section: Any, part: str, override: str) -> Any:
    if isinstance(section, list):
        below = section[_index(section, part, override)]
    else:
        key = _matching(section, part)
        if section.get(key) is None:
            section[key] = {}
        below = section[key]
    if not isinstance(below, MutableMapping | list):
        raise UserError(f"override '{override}': '{part}' is {below!r}, which has no keys under it")
    return below


def _index(items: list[Any], part: str, override: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise UserError(f"override '{override}': '{part}' is not the number of one of the list's {len(items)} items")
    return int(part)


def _has(raw: Mapping[str, Any], path: list[str]) -> bool:
    section: Any = raw
    for part in path:
        key = _matching(section, part) if isinstance(section, Mapping) else None
        if key is None or key not in section:
            return False
        section = section[key]
    return True


def _remove(raw: MutableMapping[str, Any], path: list[str]) -> None:
    section: Any = raw
    for part in path[:-1]:
        section = section.get(_matching(section, part)) if isinstance(section, Mapping) else None
    if isinstance(section, MutableMapping):
        section.pop(_matching(section, path[-1]), None)
