"""How a check names a key."""

from collections.abc import Mapping

from mindllm.config.layers import ACTOR, CRITIC, REF, REWARD
from mindllm.config.pool import PoolRole

HOMES: Mapping[PoolRole, str] = {"actor_rollout": ACTOR, "ref": REF, "critic": CRITIC, "reward": REWARD}
WHO: Mapping[PoolRole, str] = {
    "actor_rollout": "the actor",
    "ref": "the reference",
    "critic": "the critic",
    "reward": "the reward model",
}


class Names:
    """The dotted name under which each key of a role was written, or would be."""

    def __init__(self, sources: Mapping[PoolRole, Mapping[str, str]]) -> None:
        self._sources = sources

    def __call__(self, key: str, role: PoolRole = "actor_rollout") -> str:
        return self._sources.get(role, {}).get(key, f"{HOMES[role]}.{key}")

    def is_written(self, key: str, role: PoolRole = "actor_rollout") -> bool:
        """Whether any layer of the role has the key."""
        return key in self._sources.get(role, {})
