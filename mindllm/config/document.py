"""The tables of docs/configuration.md, from the schema: ``python -m mindllm.config.document``."""

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mindllm.config.actor import RL_ONLY_ACTOR_KEYS, SUPERVISED_ACTOR_KEYS, ActorConfig
from mindllm.config.architecture import ArchitectureKeys
from mindllm.config.base import Section
from mindllm.config.compat import (
    ACCEPTED,
    ACCEPTED_ALGORITHM,
    ACCEPTED_ALGORITHM_GRPO,
    ACCEPTED_CRITIC,
    ACCEPTED_TOKENIZER,
    ONE_VALUE,
    ONE_VALUE_ALGORITHM_GRPO,
    REFUSED_VALUES,
    OneValue,
)
from mindllm.config.pool import ResourcePool
from mindllm.config.roles import (
    CRITIC_ONLY_KEYS,
    ROLE_KEYS,
    TOKENIZER_KEYS,
    CriticConfig,
    RewardModelConfig,
    TrainedRoleConfig,
)
from mindllm.config.sections import AlgorithmConfig, KLControl, RewardConfig, RewardFunction
from mindllm.config.training import TrainingConfig


def keys_tables() -> str:
    """Return Markdown with every key of every section: honoured, accepted, refused."""
    actor = "actor_rollout_ref.actor_rollout"
    trained = frozenset(TrainedRoleConfig.model_fields) - ROLE_KEYS - {"model_keys"}
    data = SUPERVISED_ACTOR_KEYS - frozenset(TrainedRoleConfig.model_fields)
    tables = [
        ("### `training`", _keys(TrainingConfig)),
        (f"### Every role: `{actor}`, `actor_rollout_ref.ref`, `critic`, `reward`", _keys(ActorConfig, ROLE_KEYS)),
        (f"### Roles that train: `{actor}`, `critic`", _keys(ActorConfig, trained)),
        (f"### `{actor}`: data and processes", _keys(ActorConfig, data)),
        (f"### `{actor}`: reinforcement learning and generation", _keys(ActorConfig, RL_ONLY_ACTOR_KEYS)),
        ("### `critic`", _keys(CriticConfig, CRITIC_ONLY_KEYS)),
        ("### `algorithm`", _keys(AlgorithmConfig, leave_out={"kl_ctrl"}) + _keys(KLControl, prefix="kl_ctrl.")),
        (
            "### `reward`",
            _keys(RewardModelConfig, TOKENIZER_KEYS | {"weight"})
            + _keys(RewardConfig)
            + _keys(RewardFunction, prefix="functions[]."),
        ),
        ("### `resource_pool`", _keys(ResourcePool)),
        ("### Model files: `configs/rlxf/model/<name>.yaml`", _keys(ArchitectureKeys)),
    ]
    honoured = [f"{title}\n\n{_HEAD}{''.join(rows)}" for title, rows in tables]
    return "\n".join([*honoured, _accepted_table(), _refused_table()])


_HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"


def _keys(
    section: type[Section], only: Iterable[str] | None = None, leave_out: Iterable[str] = (), prefix: str = ""
) -> list[str]:
    chosen = set(section.model_fields if only is None else only) - set(leave_out)
    return [
        f"| `{prefix}{key}` | {_type_text(field.annotation)} | {_default_text(field)} | {field.description} |\n"
        for key, field in section.model_fields.items()
        if key in chosen
    ]


def _default_text(field: FieldInfo) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    if "default_text" in extra:
        return str(extra["default_text"])
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "unset"
    value = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"`{value}`"


_TYPE_NAMES = {int: "int", float: "number", bool: "true/false", str: "text", list: "list", dict: "mapping"}


def _type_text(annotation: Any) -> str:
    """Return ``int``, ``true/false``, the allowed words, ...; the schema's own wrappers say nothing to a reader."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return " ".join(f"`{str(word).lower() if isinstance(word, bool) else word}`" for word in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_type_text(part) for part in arguments if part is not NoneType)
    return _TYPE_NAMES.get(origin or annotation, "mapping")


def _accepted_table() -> str:
    rows = [f"| `{key}` | any | {meaning} |\n" for key, meaning in ACCEPTED.items()]
    rows += [f"| `critic.{key}` | any | {meaning} |\n" for key, meaning in ACCEPTED_CRITIC.items()]
    rows += [f"| `critic.{key}`, `ref.{key}` | any | {meaning} |\n" for key, meaning in ACCEPTED_TOKENIZER.items()]
    rows += [f"| `algorithm.{key}` | any | {meaning} |\n" for key, meaning in ACCEPTED_ALGORITHM.items()]
    rows += [
        f"| `algorithm.{key}` in `ray_grpo` | any | {meaning} |\n" for key, meaning in ACCEPTED_ALGORITHM_GRPO.items()
    ]
    rows += _one_value_rows("", "", ONE_VALUE)
    rows += _one_value_rows("algorithm.", " in `ray_grpo`", ONE_VALUE_ALGORITHM_GRPO)
    return (
        "### Accepted without effect\n\nNamed at the start of the log, by `--check`, and on stderr by `--cfg`.\n\n"
        f"| key | value | what happens instead |\n|---|---|---|\n{''.join(rows)}"
    )


def _one_value_rows(prefix: str, suffix: str, rules: Mapping[str, OneValue]) -> list[str]:
    return [
        f"| `{prefix}{key}`{suffix} | only `{str(rule.value).lower()}` | {rule.meaning}; else: {rule.otherwise} |\n"
        for key, rule in rules.items()
    ]


def _refused_table() -> str:
    rows = [f"| `{key}: {value}` | {reason} |\n" for (key, value), reason in REFUSED_VALUES.items()]
    return f"### Refused\n\n| key | reason and what to write |\n|---|---|\n{''.join(rows)}"


if __name__ == "__main__":
    print(keys_tables(), end="")
