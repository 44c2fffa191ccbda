"""The typed result of composing a configuration: what every other room receives."""

from typing import Literal

from pydantic import Field

from mindllm.config.actor import ActorConfig
from mindllm.config.base import Section
from mindllm.config.pool import SHARED, PoolRole, ResourcePool
from mindllm.config.roles import CriticConfig, RefConfig, RewardModelConfig, RoleConfig
from mindllm.config.sections import AlgorithmConfig, RewardConfig
from mindllm.config.training import TrainingConfig


class RunConfig(Section):
    """One run, checked.

    ``ref`` is None unless a KL term reads it, ``critic`` unless the stage is ``ray_ppo``, ``reward_model`` unless one
    is loaded to score responses. The model of stages ``sft`` and ``orm`` is ``actor``.
    """

    training: TrainingConfig
    actor: ActorConfig
    ref: RefConfig | None = None
    critic: CriticConfig | None = None
    reward_model: RewardModelConfig | None = None
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    resource_pool: ResourcePool = ResourcePool()
    ignored_keys: list[tuple[str, str]] = Field(
        default=[], description="(key, what happens instead) of keys that were accepted but have no effect here."
    )

    def roles(self) -> dict[PoolRole, RoleConfig]:
        """The models of this run by the role they have in ``resource_pool``; the actor first."""
        models: dict[PoolRole, RoleConfig | None] = {
            "actor_rollout": self.actor,
            "ref": self.ref,
            "critic": self.critic,
            "reward": self.reward_model,
        }
        return {role: config for role, config in models.items() if config is not None}

    def notices(self) -> list[str]:
        """A line for each key that was accepted but has no effect, or not the expected one, in this run."""
        return [f"note: {key}: {what}" for key, what in self.ignored_keys]

    @property
    def data_prefixes(self) -> dict[str, str]:
        """The prefixes of the data that this run reads, by their keys."""
        found = {"data_path": self.actor.data_path, "training.eval_data_path": self.training.eval_data_path}
        return {key: prefix for key, prefix in found.items() if prefix is not None}

    @property
    def generates_apart(self) -> bool:
        """Whether responses come from processes of their own, role ``rollout``."""
        return self.actor.num_gpus_for_infer > 0

    def per_node(self, role: PoolRole | Literal["rollout"]) -> list[int]:
        """Processes of ``role`` on each node; one entry when a plain number was written, which any node may serve.

        ``actor_rollout`` are the processes that train, ``rollout`` those that only generate: the last
        ``num_gpus_for_infer`` of the pool. A role that shares has those of its owner.
        """
        pool = self.resource_pool
        owner: PoolRole = SHARED if role == "rollout" else pool.owner(role)
        counts = pool.per_node(owner)
        if owner != SHARED:
            return counts
        train = sum(counts) - self.actor.num_gpus_for_infer
        return _slice(counts, train, sum(counts)) if role == "rollout" else _slice(counts, 0, train)

    def world_size(self, role: PoolRole | Literal["rollout"]) -> int:
        """Processes of ``role`` over all nodes."""
        return sum(self.per_node(role))

    def data_parallel_size(self, role: Literal["actor", "rollout", "ref", "critic", "reward"] = "actor") -> int:
        """Model replicas of ``role``: its processes divided by TP x PP.

        Raises:
            ValueError: the run has no such model.
        """
        if role == "rollout":
            return self.world_size("rollout") // self.actor.inference_tensor_model_parallel_size
        in_pool: PoolRole = "actor_rollout" if role == "actor" else role
        config = self.roles().get(in_pool)
        if config is None:
            raise ValueError(f"this run has no {role} model")
        return self.world_size(in_pool) // (config.tensor_model_parallel_size * config.pipeline_model_parallel_size)


def _slice(counts: list[int], start: int, stop: int) -> list[int]:
    """Processes number ``start`` to ``stop`` of nodes with ``counts`` processes each, without empty nodes."""
    taken, begin = [], 0
    for count in counts:
        taken.append(min(begin + count, stop) - max(begin, start))
        begin += count
    return [count for count in taken if count > 0]
