"""Write a configuration as the YAML that gives it back."""

from typing import Any

import yaml

from mindllm.config.actor import RL_ONLY_ACTOR_KEYS, ActorConfig
from mindllm.config.compat import ACCEPTED_ALGORITHM_GRPO, ONE_VALUE_ALGORITHM_GRPO
from mindllm.config.pool import SHARED
from mindllm.config.role_layers import default_save
from mindllm.config.roles import RoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.sections import AlgorithmConfig, RewardConfig
from mindllm.config.training import RL_ONLY_TRAINING_KEYS, SUPERVISED_STAGES


def resolved_yaml(config: RunConfig) -> str:
    """Return ``config`` with every default written out, as a file that composes to the same configuration.

    Keys without effect (``ignored_keys``) are left out; architecture keys stand beside the role's own.
    """
    return yaml.safe_dump(resolved_sections(config), sort_keys=False, allow_unicode=True, width=120)


def resolved_sections(config: RunConfig) -> dict[str, Any]:
    """The sections that ``resolved_yaml`` writes."""
    return _supervised_sections(config) if config.training.stage in SUPERVISED_STAGES else _rl_sections(config)


def _rl_sections(config: RunConfig) -> dict[str, Any]:
    run_dir = config.training.run_dir
    roles = {"actor_rollout": _without_default_save(_actor_keys(config.actor), run_dir, "actor")}
    if config.ref is not None:
        roles["ref"] = _role_keys(config.ref)
    model = _role_keys(config.reward_model) if config.reward_model is not None else {}
    return {
        **_model_names(config),
        "training": config.training.model_dump(exclude_none=True),
        "actor_rollout_ref": roles,
        **(
            {"critic": _without_default_save(_role_keys(config.critic), run_dir, "critic")}
            if config.critic is not None
            else {}
        ),
        "reward": _rule_keys(config.reward) | model,
        "algorithm": _algorithm_keys(config.algorithm, config.training.stage),
        "resource_pool": {role: getattr(config.resource_pool, role) for role in config.roles()},
    }


def _supervised_sections(config: RunConfig) -> dict[str, Any]:
    keys = _without_default_save(_role_keys(config.actor), config.training.run_dir, "actor")
    actor = {key: value for key, value in keys.items() if key not in RL_ONLY_ACTOR_KEYS}
    return {
        **_model_names(config),
        "training": config.training.model_dump(exclude_none=True, exclude=set(RL_ONLY_TRAINING_KEYS)),
        "actor_rollout_ref": {"actor_rollout": actor},
        "resource_pool": {SHARED: config.resource_pool.actor_rollout},
    }


def _algorithm_keys(algorithm: AlgorithmConfig, stage: str) -> dict[str, Any]:
    unread = set() if stage == "ray_ppo" else ACCEPTED_ALGORITHM_GRPO.keys() | ONE_VALUE_ALGORITHM_GRPO.keys()
    if not algorithm.advantage_whiten:
        unread.add("whiten_scope")
    if not algorithm.use_kl_loss:
        unread |= {"kl_loss_coef", "kl_loss_type"}
    if not algorithm.use_kl_in_reward:
        unread |= {"kl_penalty", "kl_ctrl"}
    keys = algorithm.model_dump(exclude=set(unread))
    if algorithm.use_kl_in_reward and algorithm.kl_ctrl.type == "fixed":
        del keys["kl_ctrl"]["target_kl"], keys["kl_ctrl"]["horizon"]
    return keys


def _without_default_save(keys: dict[str, Any], run_dir: str, name: str) -> dict[str, Any]:
    """Leave out a ``save`` that follows from ``run_dir``: a copy of the run in another place has its own."""
    return {key: value for key, value in keys.items() if (key, value) != ("save", default_save(run_dir, name))}


def _actor_keys(actor: ActorConfig) -> dict[str, Any]:
    keys = _role_keys(actor)
    if actor.num_gpus_for_infer == 0:
        del keys["inference_tensor_model_parallel_size"]
    return keys


def _rule_keys(reward: RewardConfig) -> dict[str, Any]:
    """An argument of a user's function may be null and mean it, so only our own unset key is left out."""
    if not reward.functions:
        return {}
    keys = reward.model_dump()
    for function in keys["functions"]:
        if function["path"] is None:
            del function["path"]
    return keys


def _role_keys(role: RoleConfig) -> dict[str, Any]:
    return role.model_dump(exclude_none=True, exclude={"model_keys"}) | role.model_keys


def _model_names(config: RunConfig) -> dict[str, Any]:
    names = {role.model for role in config.roles().values() if role.model is not None}
    return {"model": {name: {} for name in sorted(names)}} if names else {}
