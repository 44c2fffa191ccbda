"""From a run's configuration to its worker groups."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mindllm.checkpoint import read_checkpoint_info
from mindllm.config import RoleConfig, RunConfig
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.group import InlineRanks, Ranks, WorkerGroup
from mindllm.workers.policy import role_layout
from mindllm.workers.ref import Ref

if TYPE_CHECKING:
    from mindllm.workers.ray_ranks import RayCluster


class Cluster:
    """The run's processes; leaving the block ends them."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._ranks: dict[str, Ranks] = {}
        self._ray: RayCluster | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="mindllm-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ranks in self._ranks.values():
            ranks.close()
        if self._ray is not None:
            self._ray.close()
        self._scratch.cleanup()

    def start_actor(self, checkpoint: Path, total_steps: int, resume: bool) -> ActorRollout:
        """Start the actor's processes and load it; see ``ActorRolloutWorker``."""
        config = self.config.actor
        ranks = self._start_ranks("actor_rollout", config, checkpoint)
        arguments = (config, checkpoint, total_steps, resume)
        return ActorRollout(WorkerGroup(ranks, "actor_rollout", arguments), config)

    def start_ref(self, checkpoint: Path) -> Ref:
        """Load the reference model into the actor's processes, or start its own."""
        config, pool = self.config.ref, self.config.resource_pool
        shared = pool.ref_shares_actor or self.config.training.executor == "inline"
        ranks = self._ranks["actor_rollout"] if shared else self._start_ranks("ref", config, checkpoint)
        return Ref(WorkerGroup(ranks, "ref", (config, checkpoint)), config)

    def _start_ranks(self, name: str, config: RoleConfig, checkpoint: Path) -> Ranks:
        training = self.config.training
        layout = role_layout(config, read_checkpoint_info(checkpoint).architecture.num_layers)
        if training.executor == "inline":
            ranks: Ranks = InlineRanks(layout, Path(self._scratch.name))
        else:
            # Ray costs a second to import and does not exist for an inline run
            from mindllm.workers.ray_ranks import RayCluster, RayRanks

            self._ray = self._ray or RayCluster()
            ranks = RayRanks(
                name,
                self.config.resource_pool.per_node(name),
                layout,
                use_gpus=self._ray.has_gpus,
                log_dir=Path(training.run_dir).resolve() / "logs",
                resource_timeout_s=training.resource_timeout_s,
                call_timeout_s=training.worker_timeout_s,
            )
        self._ranks[name] = ranks
        return ranks
