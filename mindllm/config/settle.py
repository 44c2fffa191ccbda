"""Keys of ``algorithm`` and ``reward`` that are read together, and defaults that depend on the stage."""

from collections.abc import Mapping
from typing import Any

from mindllm.config.architecture import ARCHITECTURE_KEYS
from mindllm.config.compat import (
    ACCEPTED_ALGORITHM,
    ACCEPTED_ALGORITHM_GRPO,
    ONE_VALUE_ALGORITHM_GRPO,
    same_value,
)
from mindllm.config.layers import ALLOWED_IN_ROLE, REWARD, RULE_KEYS, Findings, honoured_keys
from mindllm.config.sections import AlgorithmConfig, KLControl

VERIFIER_KEYS = frozenset({"verifier_function", "verifier_weight"})
VERIFIER_NAMES = {"acc": "accuracy", "base_acc": "accuracy"}
PPO_KL_COEF = 0.05


def algorithm_values(keys: Mapping[str, Any], stage: str, findings: Findings) -> dict[str, Any]:
    """Return the keys of ``algorithm`` that are settings, with the defaults of ``stage``."""
    if stage == "ray_ppo":
        values = _honoured(keys, {}, findings)
        values = {"adv_estimator": "gae", "advantage_whiten": True} | values
    else:
        values = _honoured(keys, ACCEPTED_ALGORITHM_GRPO, findings)
    _check_estimator(values, stage, findings)
    control = values.get("kl_ctrl", {})
    if not isinstance(control, Mapping):
        return values
    values["kl_ctrl"] = _kl_control(control, stage, findings)
    _decide_kl_in_reward(values, stage)
    for key, switch in (("kl_penalty", "use_kl_in_reward"), ("kl_loss_type", "use_kl_loss")):
        if key in values and not values.get(switch, False):
            findings.ignored[f"algorithm.{key}"] = f"{switch} is not true, so nothing reads it"
    if "whiten_scope" in values and same_value(values.get("advantage_whiten", False), False):
        findings.ignored["algorithm.whiten_scope"] = "advantage_whiten is not true, so nothing reads it"
    return values


def _honoured(keys: Mapping[str, Any], unread: Mapping[str, str], findings: Findings) -> dict[str, Any]:
    """The settings among ``keys``; ``unread`` is empty in the stage that reads every key."""
    one_value = ONE_VALUE_ALGORITHM_GRPO if unread else {}
    allowed = (frozenset(AlgorithmConfig.model_fields) | VERIFIER_KEYS) - unread.keys() - one_value.keys()
    values = honoured_keys("algorithm", keys, allowed, findings, {**ACCEPTED_ALGORITHM, **unread}, one_value)
    return {key: value for key, value in values.items() if key not in VERIFIER_KEYS}


def _check_estimator(values: Mapping[str, Any], stage: str, findings: Findings) -> None:
    is_gae = values.get("adv_estimator", "group_norm") == "gae"
    if is_gae and stage != "ray_ppo":
        findings.errors.append(
            "algorithm.adv_estimator: gae needs a critic, which stage ray_grpo has not; write group_norm, or "
            "stage: ray_ppo"
        )
    if stage == "ray_ppo" and values["adv_estimator"] in ("group_norm", "group_mean"):
        findings.errors.append(
            f"algorithm.adv_estimator: {values['adv_estimator']} needs no critic and belongs to stage ray_grpo; write "
            "gae, or stage: ray_grpo"
        )


def _kl_control(written: Mapping[str, Any], stage: str, findings: Findings) -> dict[str, Any]:
    """The settings of ``kl_ctrl``; those that only an adaptive coefficient reads are named where it is fixed."""
    plain = {str(key).replace("-", "_"): value for key, value in written.items() if value is not None}
    control = honoured_keys("algorithm.kl_ctrl", plain, KLControl.model_fields, findings, {}, {})
    is_adaptive = control.get("type") == "adaptive"
    if is_adaptive and stage != "ray_ppo":
        findings.errors.append("algorithm.kl_ctrl.type: stage ray_grpo keeps the coefficient as it is; write fixed")
    if not is_adaptive:
        for key in ("target_kl", "horizon"):
            if control.pop(key, None) is not None:
                findings.ignored[f"algorithm.kl_ctrl.{key}"] = "only an adaptive coefficient reads it"
    return control


def _decide_kl_in_reward(values: dict[str, Any], stage: str) -> None:
    """Files older than the two switches mean the reward when they give a coefficient, or run PPO."""
    control = values["kl_ctrl"]
    usual = PPO_KL_COEF if stage == "ray_ppo" else 0.0
    in_loss = same_value(values.get("use_kl_loss", False), True)
    if "use_kl_in_reward" not in values and not in_loss:
        values["use_kl_in_reward"] = not same_value(control.get("kl_coef", usual), 0)
    if same_value(values.get("use_kl_in_reward", False), True):
        control.setdefault("kl_coef", usual)


def reward_values(
    sections: Mapping[str, Mapping[str, Any]], findings: Findings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of ``reward``: those of the rule rewards, and those of a reward model (none: there is no model).

    ``algorithm.verifier_function`` becomes rule rewards; ``reward.verifier`` chooses between the two kinds.
    """
    allowed = ALLOWED_IN_ROLE[REWARD] | RULE_KEYS | {"verifier"}
    keys = honoured_keys(REWARD, sections[REWARD], allowed, findings)
    verifier = keys.pop("verifier", None)
    model = {key: keys.pop(key) for key in sorted(keys.keys() - RULE_KEYS)}
    why_not = None
    if sections["resource_pool"].get("reward") in ([], 0):
        why_not = "resource_pool.reward is empty, so there is no reward model"
    elif verifier is not None and same_value(verifier, True):
        why_not = "verifier is true, so rule rewards score and no reward model is loaded"
    if why_not is not None:
        findings.ignored.update({f"{REWARD}.{key}": why_not for key in model})
        model = {}
    if verifier is not None and not same_value(verifier, True):
        _only_a_model(model, sections["algorithm"], findings)
    else:
        _add_verifiers(keys, sections["algorithm"], findings)
    _note_unread_rule_keys(keys, findings)
    return keys, model


def _only_a_model(model: Mapping[str, Any], algorithm: Mapping[str, Any], findings: Findings) -> None:
    if not model.keys() - ARCHITECTURE_KEYS:
        findings.errors.append(
            "reward.verifier is false: that asks for a reward model; write reward.load, or verifier: true and name "
            "rule rewards in reward.functions"
        )
    for key in sorted(VERIFIER_KEYS & algorithm.keys()):
        findings.ignored[f"algorithm.{key}"] = "reward.verifier is false, so the reward model scores alone"


def _add_verifiers(keys: dict[str, Any], algorithm: Mapping[str, Any], findings: Findings) -> None:
    names, weights = (_as_list(algorithm.get(key)) for key in ("verifier_function", "verifier_weight"))
    if not names:
        return
    if "functions" in keys:
        findings.errors.append("algorithm.verifier_function and reward.functions name the same thing; keep one")
    if weights and len(weights) != len(names):
        findings.errors.append(
            f"algorithm.verifier_weight has {len(weights)} items and verifier_function {len(names)}: one weight each"
        )
    pairs = zip(names, weights or [1.0] * len(names), strict=False)
    keys["functions"] = [{"name": VERIFIER_NAMES.get(name, name), "weight": weight} for name, weight in pairs]


def _note_unread_rule_keys(keys: Mapping[str, Any], findings: Findings) -> None:
    if keys.get("functions"):
        return
    for key in sorted(keys.keys() - {"functions"}):
        findings.ignored[f"{REWARD}.{key}"] = "there are no rule rewards in reward.functions, so nothing reads it"


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
