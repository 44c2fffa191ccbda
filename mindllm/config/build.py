"""From a composed dictionary to a checked ``RunConfig``: precedence, defaults that cross sections, then the checks."""

from collections.abc import Mapping
from typing import Any, TypeVar

from mindllm.config.actor import ACTOR_KEYS, GRPO_ONLY_ACTOR_KEYS, ROLE_KEYS, ActorConfig
from mindllm.config.architecture import ARCHITECTURE_KEYS, ArchitectureKeys
from mindllm.config.checks import check_run
from mindllm.config.explain import validated
from mindllm.config.layers import (
    ACTOR,
    ALLOWED_IN_ROLE,
    REF,
    TRAINING_KEYS,
    Findings,
    Layered,
    honoured_keys,
    lay_over,
    split_sections,
)
from mindllm.config.roles import RefConfig
from mindllm.config.schema import RunConfig
from mindllm.config.sections import AlgorithmConfig, ResourcePool, RewardConfig
from mindllm.config.settle import algorithm_values, pool_values, reward_values
from mindllm.config.training import GRPO_ONLY_TRAINING_KEYS, TrainingConfig
from mindllm.errors import UserError, did_you_mean

Role = TypeVar("Role", ActorConfig, RefConfig)

NO_REFERENCE = "no KL term is used, so no reference model is loaded"


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
    roles = {
        path: honoured_keys(path, sections[path], ALLOWED_IN_ROLE[path], findings) for path in ("training", ACTOR, REF)
    }
    models = _model_files(sections["model"], findings)
    _critic(sections, findings)
    training = _training(roles["training"], config_name, findings)
    grpo = training is None or training.stage != "sft"
    if not grpo:
        _refuse_what_sft_does_not_read(sections, roles, findings)
    actor_layers = _actor_layers(roles, models, grpo)
    actor = _role(ActorConfig, actor_layers, ACTOR if grpo else "training", training, findings)
    algorithm_keys = algorithm_values(sections["algorithm"], findings)
    algorithm = validated(AlgorithmConfig, algorithm_keys, "algorithm", {}, findings)
    reward = validated(RewardConfig, reward_values(sections, findings), "reward", {}, findings)
    findings.stop_if_any()
    assert training is not None and actor is not None and algorithm is not None and reward is not None

    ref = None
    if algorithm.needs_reference:
        ref = _role(RefConfig, _ref_layers(roles, models, actor, actor_layers), REF, None, findings)
    elif grpo:
        findings.ignored.update({f"{REF}.{key}": NO_REFERENCE for key in roles[REF]})
    findings.stop_if_any()
    pool_keys = pool_values(sections["resource_pool"], actor, ref, findings)
    pool = validated(ResourcePool, pool_keys, "resource_pool", {}, findings)
    findings.stop_if_any()
    assert pool is not None
    _note_unpicked_models(models, actor, ref, findings)
    config = RunConfig(training=training, actor=actor, ref=ref, reward=reward, algorithm=algorithm, resource_pool=pool)
    check_run(config, actor_layers.sources, findings)
    findings.stop_if_any()
    return config.model_copy(update={"ignored_keys": sorted(findings.ignored.items())})


def _training(keys: Mapping[str, Any], config_name: str, findings: Findings) -> TrainingConfig | None:
    own = lay_over([("training", keys)], TRAINING_KEYS)
    values = {"run_dir": f"runs/{config_name}"} | own.values
    return validated(TrainingConfig, values, "training", own.sources, findings)


def _model_files(models: Mapping[str, Any], findings: Findings) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for name, keys in models.items():
        if not isinstance(keys, Mapping):
            raise UserError(f"model file '{name}': its only top-level key must be its own name, '{name}'")
        plain = {str(key).replace("-", "_"): value for key, value in keys.items() if value is not None}
        files[name] = honoured_keys(f"model.{name}", plain, ALLOWED_IN_ROLE["model"], findings)
    return files


def _critic(sections: Mapping[str, Mapping[str, Any]], findings: Findings) -> None:
    if not sections["critic"]:
        return
    if sections["resource_pool"].get("critic") in ([], 0):
        findings.ignored["critic"] = "resource_pool.critic is empty, so there is no critic"
    else:
        findings.errors.append(
            "critic: this section belongs to stage ray_ppo, which is not available; remove it "
            "(or write resource_pool.critic: [])"
        )


def _refuse_what_sft_does_not_read(
    sections: Mapping[str, Mapping[str, Any]], roles: Mapping[str, Mapping[str, Any]], findings: Findings
) -> None:
    unread = GRPO_ONLY_ACTOR_KEYS | GRPO_ONLY_TRAINING_KEYS
    for path in ("training", ACTOR):
        for key in sorted(unread & roles[path].keys()):
            findings.errors.append(f"{path}.{key}: stage sft does not read this key; remove it")
    for path in (REF, "algorithm", "reward"):
        if sections[path]:
            findings.errors.append(f"{path}: stage sft does not read this section; remove it")


def _actor_layers(roles: Mapping[str, Mapping[str, Any]], models: Mapping[str, Any], grpo: bool) -> Layered:
    layers = [("training", roles["training"]), (ACTOR, roles[ACTOR])]
    keys = ACTOR_KEYS if grpo else ACTOR_KEYS - GRPO_ONLY_ACTOR_KEYS
    return _with_model_file(layers, models, keys | ARCHITECTURE_KEYS)


def _with_model_file(
    layers: list[tuple[str, Mapping[str, Any]]], models: Mapping[str, Any], keys: frozenset[str]
) -> Layered:
    """Put the model file that the layers pick below them."""
    picked = lay_over(layers, {"model"})
    if not picked.values:
        return lay_over(layers, keys)
    name = picked.values["model"]
    if name not in models:
        listed = ", ".join(models) or "none"
        raise UserError(
            f"{picked.sources['model']} is {name!r}: no such model file is listed under defaults (listed: {listed})"
            + did_you_mean(str(name), models)
        )
    return lay_over([(f"model.{name}", models[name]), *layers], keys)


def _ref_layers(
    roles: Mapping[str, Mapping[str, Any]], models: Mapping[str, Any], actor: ActorConfig, actor_layers: Layered
) -> Layered:
    """The reference's own keys over the actor's: what is not said of it is as in the actor."""
    layers = [("training", roles["training"]), (REF, roles[REF])]
    own = _with_model_file(layers, models, ROLE_KEYS | ARCHITECTURE_KEYS)
    inherited: dict[str, Any] = {key: getattr(actor, key) for key in ROLE_KEYS if getattr(actor, key) is not None}
    if own.values.get("model") in (None, actor.model):
        inherited |= actor.model_keys
    if own.values.get("pipeline_model_parallel_size") in (1, "1"):
        # A reference without pipeline stages has nothing to interleave, whatever the actor does.
        inherited.pop("num_layers_per_virtual_pipeline_stage", None)
        own.values.pop("num_layers_per_virtual_pipeline_stage", None)
    return Layered(inherited | own.values, actor_layers.sources | own.sources)


def _role(
    kind: type[Role], layers: Layered, path: str, training: TrainingConfig | None, findings: Findings
) -> Role | None:
    shape = {key: value for key, value in layers.values.items() if key in ARCHITECTURE_KEYS}
    architecture = validated(ArchitectureKeys, shape, path, layers.sources, findings)
    values = {key: value for key, value in layers.values.items() if key not in ARCHITECTURE_KEYS}
    if training is not None:
        values.setdefault("save", f"{training.run_dir}/checkpoints/actor")
    if architecture is not None:
        values["model_keys"] = architecture.model_dump(exclude_none=True)
    role = validated(kind, values, path, layers.sources, findings)
    if role is not None and role.sequence_parallel and role.tensor_model_parallel_size == 1:
        source = layers.sources.get("sequence_parallel", f"{path}.sequence_parallel")
        findings.ignored[source] = "with tensor_model_parallel_size 1 there is nothing to shard, so it is off"
        return role.model_copy(update={"sequence_parallel": False})
    return role


def _note_unpicked_models(
    models: Mapping[str, Any], actor: ActorConfig, ref: RefConfig | None, findings: Findings
) -> None:
    picked = {actor.model, ref.model if ref else None}
    for name in models.keys() - picked:
        findings.ignored[f"model.{name}"] = f"no role picks it with model: {name}"
