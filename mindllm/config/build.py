"""From a composed dictionary to a checked ``RunConfig``: precedence, defaults that cross sections, then the checks."""

from collections.abc import Mapping
from typing import Any, get_args

from mindllm.config.actor import RL_ONLY_ACTOR_KEYS
from mindllm.config.checks import check_run
from mindllm.config.compat import ACCEPTED, ACCEPTED_CRITIC, ACCEPTED_TOKENIZER
from mindllm.config.explain import validated
from mindllm.config.layers import (
    ACTOR,
    ALLOWED_IN_ROLE,
    CRITIC,
    REF,
    REWARD,
    TRAINING_KEYS,
    Findings,
    honoured_keys,
    lay_over,
    split_sections,
)
from mindllm.config.pool import ResourcePool
from mindllm.config.role_layers import RoleBuilder
from mindllm.config.roles import CRITIC_ONLY_KEYS, RefConfig
from mindllm.config.schema import RunConfig
from mindllm.config.sections import AlgorithmConfig, RewardConfig
from mindllm.config.settle import algorithm_values, reward_values
from mindllm.config.settle_pool import ABSENT, pool_values
from mindllm.config.training import (
    RL_ONLY_TRAINING_KEYS,
    STAGE_ALIASES,
    SUPERVISED_STAGES,
    WANDB_KEYS,
    Stage,
    TrainingConfig,
)
from mindllm.errors import UserError


def build_config(raw: Mapping[str, Any], config_name: str = "default") -> RunConfig:
    """Return the typed configuration of ``raw``, a composed dictionary without interpolations.

    Args:
        raw: sections as in a YAML file; ``model`` maps names of model files to their contents.
        config_name: names the default run directory, ``runs/<config_name>``.

    Raises:
        UserError: something is unknown, missing, of the wrong type or at odds with something else; one sentence a line.
    """
    findings = Findings()
    sections = split_sections(raw)
    written = {
        path: honoured_keys(path, sections[path], ALLOWED_IN_ROLE[path], findings) for path in ("training", ACTOR)
    }
    accepted = {**ACCEPTED, **ACCEPTED_TOKENIZER}
    written[REF] = honoured_keys(REF, sections[REF], ALLOWED_IN_ROLE[REF], findings, accepted)
    models = _model_files(sections["model"], findings)
    training = _training(written["training"], config_name, findings)
    stage = _stage(written["training"], findings)
    _refuse_unread(stage, sections, written, findings)
    if stage == "ray_ppo":
        accepted |= ACCEPTED_CRITIC
        written[CRITIC] = honoured_keys(CRITIC, sections[CRITIC], ALLOWED_IN_ROLE[CRITIC], findings, accepted)
    builder = RoleBuilder(written, models, training.run_dir if training is not None else None, findings)
    draft = _without_pool(builder, stage, sections, training)
    pool_keys = pool_values(sections["resource_pool"], draft.roles(), findings)
    findings.stop_if_any()
    pool = validated(ResourcePool, pool_keys, "resource_pool", {}, findings)
    findings.stop_if_any()
    _note_unpicked_models(draft, models, findings)
    config = draft.model_copy(update={"resource_pool": pool})
    check_run(config, builder.sources, findings)
    findings.stop_if_any()
    return config.model_copy(update={"ignored_keys": sorted(findings.ignored.items())})


def _without_pool(
    builder: RoleBuilder, stage: str, sections: Mapping[str, Mapping[str, Any]], training: TrainingConfig | None
) -> RunConfig:
    """Everything but the processes. Raises UserError with all the mistakes so far."""
    findings = builder.findings
    actor = builder.actor(stage)
    critic = builder.critic() if stage == "ray_ppo" else None
    algorithm_keys = algorithm_values(sections["algorithm"], stage, findings)
    algorithm = validated(AlgorithmConfig, algorithm_keys, "algorithm", {}, findings)
    rule_keys, model_keys = reward_values(sections, findings)
    reward = validated(RewardConfig, rule_keys, REWARD, {}, findings)
    reward_model = builder.reward_model(model_keys) if model_keys else None
    findings.stop_if_any()
    assert training is not None and actor is not None and algorithm is not None and reward is not None
    ref: RefConfig | None = None
    if algorithm.needs_reference:
        ref = builder.ref(actor)
    elif stage not in SUPERVISED_STAGES:
        findings.ignored.update({f"{REF}.{key}": ABSENT["ref"] for key in builder.written[REF]})
    findings.stop_if_any()
    return RunConfig(
        training=training,
        actor=actor,
        ref=ref,
        critic=critic,
        reward_model=reward_model,
        reward=reward,
        algorithm=algorithm,
    )


def _training(keys: Mapping[str, Any], config_name: str, findings: Findings) -> TrainingConfig | None:
    own = lay_over([("training", keys)], TRAINING_KEYS)
    values = {"run_dir": f"runs/{config_name}"} | own.values
    training = validated(TrainingConfig, values, "training", own.sources, findings)
    if training is None or "wandb" in training.trackers:
        return training
    unread = {key: None for key in WANDB_KEYS if getattr(training, key) is not None}
    findings.ignored.update({f"training.{key}": "training.trackers does not list wandb" for key in unread})
    return training.model_copy(update=unread)


def _stage(keys: Mapping[str, Any], findings: Findings) -> str:
    """The stage, even where another key of ``training`` is wrong; without one nothing else can be judged."""
    value = str(keys.get("stage", "")).strip()
    stage = STAGE_ALIASES.get(value, value)
    if stage not in get_args(Stage):
        findings.stop_if_any()
    return stage


def _model_files(models: Mapping[str, Any], findings: Findings) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for name, keys in models.items():
        if not isinstance(keys, Mapping):
            raise UserError(f"model file '{name}': its only top-level key must be its own name, '{name}'")
        plain = {str(key).replace("-", "_"): value for key, value in keys.items() if value is not None}
        files[name] = honoured_keys(f"model.{name}", plain, ALLOWED_IN_ROLE["model"], findings)
    return files


def _refuse_unread(
    stage: str,
    sections: Mapping[str, Mapping[str, Any]],
    written: Mapping[str, Mapping[str, Any]],
    findings: Findings,
) -> None:
    """Refuse keys and sections that ``stage`` does not read."""
    supervised = stage in SUPERVISED_STAGES
    unread = RL_ONLY_ACTOR_KEYS | RL_ONLY_TRAINING_KEYS if supervised else frozenset()
    unread |= CRITIC_ONLY_KEYS if stage != "ray_ppo" else frozenset()
    for path in ("training", ACTOR):
        for key in sorted(unread & written[path].keys()):
            findings.errors.append(f"{path}.{key}: stage {stage} does not read this key; remove it")
    for path in (REF, "algorithm", REWARD) if supervised else ():
        if sections[path]:
            findings.errors.append(f"{path}: stage {stage} does not read this section; remove it")
    if stage == "ray_ppo" or not sections[CRITIC]:
        return
    if sections["resource_pool"].get("critic") in ([], 0):
        findings.ignored[CRITIC] = "resource_pool.critic is empty, so there is no critic"
    else:
        findings.errors.append(
            f"{CRITIC}: only stage ray_ppo trains a critic; remove this section (or write resource_pool.critic: [])"
        )


def _note_unpicked_models(config: RunConfig, models: Mapping[str, Any], findings: Findings) -> None:
    picked = {role.model for role in config.roles().values()}
    for name in models.keys() - picked:
        findings.ignored[f"model.{name}"] = f"no role picks it with model: {name}"
