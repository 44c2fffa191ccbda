"""The typed result of composing a configuration: what every other room receives."""

from typing import Literal

from pydantic import Field

from mindllm.config.actor import ActorConfig
from mindllm.config.base import Section
from mindllm.config.roles import RefConfig, RoleConfig
from mindllm.config.sections import AlgorithmConfig, ResourcePool, RewardConfig
from mindllm.config.training import TrainingConfig


class RunConfig(Section):
    """One run, checked. ``ref`` is None unless a KL term reads it."""

    training: TrainingConfig
    actor: ActorConfig
    ref: RefConfig | None = None
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    resource_pool: ResourcePool = ResourcePool()
    ignored_keys: list[tuple[str, str]] = Field(
        default=[], description="(key, what happens instead) of keys that were accepted but have no effect here."
    )

    def data_parallel_size(self, role: Literal["actor", "ref"] = "actor") -> int:
        """Model replicas of ``role``: its processes divided by TP x PP.

        Raises:
            ValueError: ``ref`` is asked for and the run has none.
        """
        config: RoleConfig | None = self.actor if role == "actor" else self.ref
        if config is None:
            raise ValueError("this run has no reference model")
        world = self.resource_pool.world_size("actor_rollout" if role == "actor" else "ref")
        return world // (config.tensor_model_parallel_size * config.pipeline_model_parallel_size)
