"""Processes of each role: what was written, what follows from the layouts, and who may share."""

from collections.abc import Mapping
from typing import Any, get_args

from mindllm.config.actor import ActorConfig
from mindllm.config.layers import Findings, honoured_keys
from mindllm.config.pool import SHARED, PoolRole, ResourcePool
from mindllm.config.roles import RoleConfig
from mindllm.errors import did_you_mean

ROLES: tuple[PoolRole, ...] = get_args(PoolRole)
NEEDED_BY: Mapping[str, str] = {
    "ref": "a KL term reads the reference model",
    "critic": "stage ray_ppo trains a critic",
}
ABSENT: Mapping[str, str] = {
    "ref": "no KL term is used, so no reference model is loaded",
    "critic": "only stage ray_ppo has a critic",
    "reward": "no reward model is loaded; one is named with reward.load",
}


def pool_values(keys: Mapping[str, Any], roles: Mapping[PoolRole, RoleConfig], findings: Findings) -> dict[str, Any]:
    """Return ``resource_pool`` with the processes that were not written.

    Args:
        keys: the section as written.
        roles: the models of the run.
        findings: receives what refuses the run.
    """
    values = honoured_keys("resource_pool", keys, frozenset(ResourcePool.model_fields), findings, {}, {})
    actor = roles[SHARED]
    assert isinstance(actor, ActorConfig)
    processes = (actor.num_gpus_for_train or _layout_size(actor)) + actor.num_gpus_for_infer
    values.setdefault(SHARED, processes)
    for role in ROLES[1:]:
        is_empty = values.get(role) in (0, [])
        if role not in roles:
            if role in values and not is_empty:
                findings.ignored[f"resource_pool.{role}"] = ABSENT[role]
            values.pop(role, None)
        elif is_empty:
            findings.errors.append(
                f"resource_pool.{role} is {values.pop(role)!r} but {NEEDED_BY[role]}; "
                f"write {SHARED} to share its processes, or a number"
            )
        else:
            values.setdefault(role, SHARED if same_layout(actor, roles[role]) else _layout_size(roles[role]))
    _check_sharing(values, roles, findings)
    return values


def _check_sharing(values: Mapping[str, Any], roles: Mapping[PoolRole, RoleConfig], findings: Findings) -> None:
    """Every shared role exists, and following the names ends at processes; the first mistake is noted."""
    for role in ROLES[1:]:
        passed: list[str] = [role]
        while _is_name(target := values.get(passed[-1])):
            mistake = _sharing_mistake(passed, str(target), roles)
            if mistake is not None:
                findings.errors.append(f"resource_pool.{role} is {target}: {mistake}")
                return
            passed.append(str(target))


def _sharing_mistake(passed: list[str], target: str, roles: Mapping[PoolRole, RoleConfig]) -> str | None:
    if target not in ROLES:
        return (
            "it is not a number of processes, a list with one number per node, or a role to share with "
            f"({', '.join(ROLES)}){did_you_mean(target, ROLES)}"
        )
    if target not in roles:
        return f"this run has no such model to share with, only {', '.join(roles)}"
    if target in passed:
        return "the roles name each other in a circle; give one of them a number of processes"
    return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and not value.strip().isdigit()


def same_layout(one: RoleConfig, other: RoleConfig) -> bool:
    """Whether two roles may live in the same processes: equal TP, PP and VPP."""
    keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _layout_size(role: RoleConfig) -> int:
    return role.tensor_model_parallel_size * role.pipeline_model_parallel_size
