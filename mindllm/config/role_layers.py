"""From layers of written keys to the typed configuration of each role."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mindllm.config.actor import ACTOR_KEYS, SUPERVISED_ACTOR_KEYS, ActorConfig
from mindllm.config.architecture import ARCHITECTURE_KEYS, ArchitectureKeys
from mindllm.config.compat import same_value
from mindllm.config.explain import validated
from mindllm.config.layers import ACTOR, CRITIC, REF, REWARD, Findings, Layered, lay_over
from mindllm.config.pool import PoolRole
from mindllm.config.roles import (
    CRITIC_KEYS,
    REWARD_MODEL_KEYS,
    ROLE_KEYS,
    CriticConfig,
    RefConfig,
    RewardModelConfig,
    RoleConfig,
)
from mindllm.config.training import SUPERVISED_STAGES
from mindllm.errors import UserError, did_you_mean

Role = TypeVar("Role", bound=RoleConfig)


@dataclass
class RoleBuilder:
    """Builds the roles of one run; remembers under which dotted key each value was written.

    written: section -> its keys. models: model file -> its keys. run_dir: of the run, None where it is not known.
    """

    written: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    run_dir: str | None
    findings: Findings
    sources: dict[PoolRole, dict[str, str]] = field(default_factory=dict)

    def actor(self, stage: str) -> ActorConfig | None:
        """The model that reads the data; stages ``sft`` and ``orm`` name what they miss in ``training``."""
        supervised = stage in SUPERVISED_STAGES
        layers = self._layers(ACTOR, SUPERVISED_ACTOR_KEYS if supervised else ACTOR_KEYS)
        if stage == "ray_ppo":
            layers.values.setdefault("do_sample", False)
        if same_value(layers.values.get("num_gpus_for_infer", 0), 0):
            unread = "inference_tensor_model_parallel_size"
            if layers.values.pop(unread, None) is not None:
                self.findings.ignored[layers.sources[unread]] = "responses are generated in the layout that trains"
        return self._role(ActorConfig, "actor_rollout", layers, "training" if supervised else ACTOR, "actor")

    def ref(self, actor: ActorConfig) -> RefConfig | None:
        """The reference: what is not said of it is as in the actor."""
        own = self._layers(REF, ROLE_KEYS)
        inherited: dict[str, Any] = {key: getattr(actor, key) for key in ROLE_KEYS if getattr(actor, key) is not None}
        if own.values.get("model") in (None, actor.model):
            inherited |= actor.model_keys
        if own.values.get("pipeline_model_parallel_size") in (1, "1"):
            # A reference without pipeline stages has nothing to interleave, whatever the actor does.
            inherited.pop("num_layers_per_virtual_pipeline_stage", None)
            own.values.pop("num_layers_per_virtual_pipeline_stage", None)
        layers = Layered(inherited | own.values, self.sources["actor_rollout"] | own.sources)
        return self._role(RefConfig, "ref", layers, REF)

    def critic(self) -> CriticConfig | None:
        """The critic."""
        return self._role(CriticConfig, "critic", self._layers(CRITIC, CRITIC_KEYS), CRITIC, "critic")

    def reward_model(self, keys: Mapping[str, Any]) -> RewardModelConfig | None:
        """The reward model of section ``reward``'s ``keys``; its tokenizer is never that of ``training``."""
        common = {key: value for key, value in self.written["training"].items() if key != "tokenizer_name_or_path"}
        layers = self._with_model_file([("training", common), (REWARD, keys)], REWARD_MODEL_KEYS)
        return self._role(RewardModelConfig, "reward", layers, REWARD)

    def _layers(self, section: str, keys: frozenset[str]) -> Layered:
        return self._with_model_file(
            [("training", self.written["training"]), (section, self.written.get(section, {}))], keys
        )

    def _with_model_file(self, layers: list[tuple[str, Mapping[str, Any]]], keys: frozenset[str]) -> Layered:
        """Put the model file that the layers pick below them."""
        keys = keys | ARCHITECTURE_KEYS
        picked = lay_over(layers, {"model"})
        if not picked.values:
            return lay_over(layers, keys)
        name = picked.values["model"]
        if name not in self.models:
            listed = ", ".join(self.models) or "none"
            raise UserError(
                f"{picked.sources['model']} is {name!r}: no such model file is listed under defaults "
                f"(listed: {listed})" + did_you_mean(str(name), self.models)
            )
        return lay_over([(f"model.{name}", self.models[name]), *layers], keys)

    def _role(
        self, kind: type[Role], pool_role: PoolRole, layers: Layered, path: str, saves_as: str | None = None
    ) -> Role | None:
        """Type the layers of a role; ``saves_as`` names the directory of one that trains."""
        self.sources[pool_role] = layers.sources
        shape = {key: value for key, value in layers.values.items() if key in ARCHITECTURE_KEYS}
        architecture = validated(ArchitectureKeys, shape, path, layers.sources, self.findings)
        values = {key: value for key, value in layers.values.items() if key not in ARCHITECTURE_KEYS}
        if saves_as is not None and self.run_dir is not None:
            values.setdefault("save", default_save(self.run_dir, saves_as))
        if architecture is not None:
            values["model_keys"] = architecture.model_dump(exclude_none=True)
        role = validated(kind, values, path, layers.sources, self.findings)
        if role is None or not role.sequence_parallel or role.tensor_model_parallel_size > 1:
            return role
        source = layers.sources.get("sequence_parallel", path)
        if pool_role == "actor_rollout" or source.startswith(path):  # one of `training` may be meant for the others
            self.findings.ignored[source] = "with tensor_model_parallel_size 1 there is nothing to shard, so it is off"
        return role.model_copy(update={"sequence_parallel": False})


def default_save(run_dir: str, name: str) -> str:
    """Directory of a trained role's checkpoints where its ``save`` is not written."""
    return f"{run_dir}/checkpoints/{name}"
