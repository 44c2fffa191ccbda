"""Keys of ``algorithm``, ``reward`` and ``resource_pool`` that are read together before they are typed."""

from collections.abc import Mapping
from typing import Any

from mindllm.config.actor import ActorConfig
from mindllm.config.compat import (
    ACCEPTED_ALGORITHM,
    ACCEPTED_KL_CTRL,
    ONE_VALUE_ALGORITHM,
    REWARD_MODEL_KEYS,
    same_value,
)
from mindllm.config.layers import Findings, honoured_keys
from mindllm.config.roles import RefConfig, RoleConfig
from mindllm.config.sections import SHARED, AlgorithmConfig, KLControl, ResourcePool

VERIFIER_KEYS = frozenset({"verifier_function", "verifier_weight"})
VERIFIER_NAMES = {"acc": "accuracy"}


def algorithm_values(keys: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """Return the keys of ``algorithm`` that are settings; decide ``use_kl_in_reward`` where it is not written."""
    allowed = frozenset(AlgorithmConfig.model_fields) | VERIFIER_KEYS
    values = honoured_keys("algorithm", keys, allowed, findings, ACCEPTED_ALGORITHM, ONE_VALUE_ALGORITHM)
    values = {key: value for key, value in values.items() if key not in VERIFIER_KEYS}
    control = values.get("kl_ctrl")
    if isinstance(control, Mapping):
        written = {str(key).replace("-", "_"): value for key, value in control.items() if value is not None}
        control = honoured_keys("algorithm.kl_ctrl", written, KLControl.model_fields, findings, ACCEPTED_KL_CTRL, {})
        values["kl_ctrl"] = control
        if "use_kl_in_reward" not in values and "use_kl_loss" not in values:
            # Files older than the two switches mean the reward when they give a coefficient.
            values["use_kl_in_reward"] = not same_value(control.get("kl_coef", 0), 0)
    for key, switch in (("kl_penalty", "use_kl_in_reward"), ("kl_loss_type", "use_kl_loss")):
        if key in values and not values.get(switch, False):
            findings.ignored[f"algorithm.{key}"] = f"{switch} is not true, so nothing reads it"
    return values


def reward_values(sections: Mapping[str, Mapping[str, Any]], findings: Findings) -> dict[str, Any]:
    """Return the keys of ``reward``, with ``algorithm.verifier_function`` as functions; refuse a reward model."""
    keys = dict(sections["reward"])
    _reward_model_keys(keys, sections["resource_pool"], findings)
    if "verifier" in keys and not same_value(keys.pop("verifier"), True):
        findings.errors.append(
            "reward.verifier is false: that asks for a reward model, which is not available; "
            "write true, or name rule rewards in reward.functions"
        )
    names, weights = (_as_list(sections["algorithm"].get(key)) for key in ("verifier_function", "verifier_weight"))
    if not names:
        return keys
    if "functions" in keys:
        findings.errors.append("algorithm.verifier_function and reward.functions name the same thing; keep one")
    if weights and len(weights) != len(names):
        findings.errors.append(
            f"algorithm.verifier_weight has {len(weights)} items and verifier_function {len(names)}: one weight each"
        )
    weights = weights or [1.0] * len(names)
    pairs = zip(names, weights, strict=False)
    keys["functions"] = [{"name": VERIFIER_NAMES.get(name, name), "weight": weight} for name, weight in pairs]
    return keys


def _reward_model_keys(keys: dict[str, Any], pool: Mapping[str, Any], findings: Findings) -> None:
    for key in sorted(REWARD_MODEL_KEYS & keys.keys()):
        del keys[key]
        if pool.get("reward") in ([], 0):
            findings.ignored[f"reward.{key}"] = "resource_pool.reward is empty, so there is no reward model"
        else:
            findings.errors.append(
                f"reward.{key}: reward models are not available; remove it (or write resource_pool.reward: []) "
                "and name rule rewards in reward.functions"
            )


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def pool_values(
    keys: Mapping[str, Any], actor: ActorConfig, ref: RefConfig | None, findings: Findings
) -> dict[str, Any]:
    """Return ``resource_pool`` with the processes that were not written; refuse roles that do not exist."""
    values = dict(keys)
    for role in ("critic", "reward"):
        if values.pop(role, None) not in (None, 0, []):
            findings.errors.append(f"resource_pool.{role}: this role is not available; write [] or remove it")
    known = frozenset(ResourcePool.model_fields)
    values = honoured_keys("resource_pool", values, known, findings, {}, {})
    processes = actor.num_gpus_for_train or _layout_size(actor)
    values.setdefault("actor_rollout", processes)
    without_ref = values.get("ref") in (0, [])
    if ref is None:
        if "ref" in values and not without_ref:
            findings.ignored["resource_pool.ref"] = "no KL term is used, so no reference model is loaded"
        values.pop("ref", None)
    elif without_ref:
        findings.errors.append(
            f"resource_pool.ref is {values.pop('ref')!r} but a KL term reads the reference model; "
            f"write {SHARED} to share its processes, or a number"
        )
    else:
        values.setdefault("ref", SHARED if same_layout(actor, ref) else _layout_size(ref))
    return values


def same_layout(one: RoleConfig, other: RoleConfig) -> bool:
    """Whether two roles may live in the same processes: equal TP, PP and VPP."""
    keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _layout_size(role: RoleConfig) -> int:
    return role.tensor_model_parallel_size * role.pipeline_model_parallel_size
