"""Write a configuration as the YAML that gives it back."""

from typing import Any

import yaml

from mindllm.config.actor import GRPO_ONLY_ACTOR_KEYS
from mindllm.config.roles import RoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.sections import RewardConfig
from mindllm.config.training import GRPO_ONLY_TRAINING_KEYS


def resolved_yaml(config: RunConfig) -> str:
    """Return ``config`` with every default written out, as a file that composes to the same configuration.

    Keys without effect (``ignored_keys``) are left out; architecture keys stand beside the role's own.
    """
    sections = _grpo_sections(config) if config.training.stage == "ray_grpo" else _sft_sections(config)
    return yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=120)


def _grpo_sections(config: RunConfig) -> dict[str, Any]:
    roles = {"actor_rollout": _role_keys(config.actor)}
    pool = config.resource_pool.model_dump()
    if config.ref is None:
        pool.pop("ref")
    else:
        roles["ref"] = _role_keys(config.ref)
    algorithm = config.algorithm.model_dump()
    unread = {"use_kl_loss": ("kl_loss_coef", "kl_loss_type"), "use_kl_in_reward": ("kl_penalty", "kl_ctrl")}
    for switch, keys in unread.items():
        if not algorithm[switch]:
            algorithm = {key: value for key, value in algorithm.items() if key not in keys}
    return {
        **_model_names(config),
        "training": config.training.model_dump(exclude_none=True),
        "actor_rollout_ref": roles,
        "reward": _reward_keys(config.reward),
        "algorithm": algorithm,
        "resource_pool": pool,
    }


def _sft_sections(config: RunConfig) -> dict[str, Any]:
    actor = {key: value for key, value in _role_keys(config.actor).items() if key not in GRPO_ONLY_ACTOR_KEYS}
    return {
        **_model_names(config),
        "training": config.training.model_dump(exclude_none=True, exclude=set(GRPO_ONLY_TRAINING_KEYS)),
        "actor_rollout_ref": {"actor_rollout": actor},
        "resource_pool": {"actor_rollout": config.resource_pool.actor_rollout},
    }


def _reward_keys(reward: RewardConfig) -> dict[str, Any]:
    """An argument of a user's function may be null and mean it, so only our own unset key is left out."""
    keys = reward.model_dump()
    for function in keys["functions"]:
        if function["path"] is None:
            del function["path"]
    return keys


def _role_keys(role: RoleConfig) -> dict[str, Any]:
    return role.model_dump(exclude_none=True, exclude={"model_keys"}) | role.model_keys


def _model_names(config: RunConfig) -> dict[str, Any]:
    names = {role.model for role in (config.actor, config.ref) if role is not None and role.model is not None}
    return {"model": {name: {} for name in sorted(names)}} if names else {}
