"""From a run's configuration to its worker groups."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mindllm.checkpoint import read_checkpoint_info
from mindllm.config import RoleConfig, RunConfig
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.critic import Critic
from mindllm.workers.group import InlineRanks, Ranks, WorkerGroup
from mindllm.workers.model import role_layout
from mindllm.workers.ref import Ref
from mindllm.workers.reward import Reward, TrainedReward
from mindllm.workers.rollout import inference_config

if TYPE_CHECKING:
    from mindllm.workers.ray_ranks import RayCluster


_ROLE_IN_METRICS = {"actor_rollout": "actor", "trained_reward": "reward"}


class Cluster:
    """The run's processes; leaving the block ends them."""

    def __init__(
        self,
        config: RunConfig,
        phase: Callable[[str], AbstractContextManager[None]] = nullcontext,
        watcher: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            config: of the run.
            phase: entered, with a description, while ranks start and models load.
            watcher: told how far a long call of a worker group is.
        """
        self.config, self._phase, self._watcher = config, phase, watcher
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
        """Start the actor's processes and load it; see ``TrainedWorker``."""
        config, generation = self.config.actor, None
        training = self._group("actor_rollout", config, checkpoint, total_steps, resume)
        if self.config.generates_apart:
            generation = self._group("rollout", inference_config(config), checkpoint)
        return ActorRollout(training, config, generation)

    def start_critic(self, checkpoint: Path, total_steps: int, resume: bool) -> Critic:
        """Start the critic; see ``TrainedWorker``."""
        config = self.config.critic
        return Critic(self._group("critic", config, checkpoint, total_steps, resume), config)

    def start_trained_reward(self, checkpoint: Path, total_steps: int, resume: bool) -> TrainedReward:
        """Start a reward model that trains, in the actor's place; see ``TrainedWorker``."""
        config = self.config.actor
        ranks = self._ranks_of("actor_rollout", config, checkpoint)
        return TrainedReward(self._load(ranks, "trained_reward", config, checkpoint, total_steps, resume), config)

    def start_ref(self, checkpoint: Path) -> Ref:
        """Start the reference model."""
        config = self.config.ref
        return Ref(self._group("ref", config, checkpoint), config)

    def start_reward(self, checkpoint: Path) -> Reward:
        """Start the reward model."""
        config = self.config.reward_model
        return Reward(self._group("reward", config, checkpoint), config)

    def _group(self, role: str, config: RoleConfig, checkpoint: Path, *arguments: Any) -> WorkerGroup:
        return self._load(self._ranks_of(role, config, checkpoint), role, config, checkpoint, *arguments)

    def _load(self, ranks: Ranks, role: str, config: RoleConfig, checkpoint: Path, *arguments: Any) -> WorkerGroup:
        with self._phase(f"loading {checkpoint} as {role}"):
            return WorkerGroup(ranks, role, (config, checkpoint, *arguments))

    def take_peaks(self) -> dict[str, int]:
        """Peak memory in bytes of the largest rank by ``<role>_<method>``, since this was last asked."""
        peaks: dict[str, int] = {}
        for ranks in self._ranks.values():
            for taken in ranks.run("take_peaks", [()] * len(ranks.coordinates)):
                for (role, method), size in taken.items():
                    name = f"{_ROLE_IN_METRICS.get(role, role)}_{method}"
                    peaks[name] = max(size, peaks.get(name, 0))
        return peaks

    def _ranks_of(self, role: str, config: RoleConfig, checkpoint: Path) -> Ranks:
        """The role's processes: those of the role it shares with, or its own; inline there is but one."""
        inline = self.config.training.executor == "inline"
        apart = role == "rollout"
        owner = "inline" if inline else role if apart else self.config.resource_pool.owner(role)
        if owner not in self._ranks:
            count = 1 if inline else self.config.world_size(owner)
            with self._phase(f"starting {count} rank{'s' if count > 1 else ''} of {role if inline else owner}"):
                self._start_ranks(owner, config, checkpoint)
        return self._ranks[owner]

    def _start_ranks(self, name: str, config: RoleConfig, checkpoint: Path) -> None:
        training = self.config.training
        layout = role_layout(config, read_checkpoint_info(checkpoint).architecture.num_layers)
        if training.executor == "inline":
            ranks: Ranks = InlineRanks(layout, Path(self._scratch.name), self._watcher)
        else:
            # Ray costs a second to import and does not exist for an inline run
            from mindllm.workers.ray_ranks import RayCluster, RayRanks

            self._ray = self._ray or RayCluster()
            ranks = RayRanks(
                name,
                self.config.per_node(name),
                layout,
                use_gpus=self._ray.has_gpus,
                log_dir=Path(training.run_dir).resolve() / "logs",
                resource_timeout_s=training.resource_timeout_s,
                call_timeout_s=training.worker_timeout_s,
                watcher=self._watcher,
            )
        self._ranks[name] = ranks
