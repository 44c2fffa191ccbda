"""The actor: the one model that generates, scores and trains, on the same weights."""

from pathlib import Path

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from torch import Tensor

from mindllm.config import ActorConfig
from mindllm.data.sequences import Sequences
from mindllm.parallel.groups import coordinates
from mindllm.rollout import GenerationStats, SamplingParams
from mindllm.workers.dispatch import Share, divide_requests
from mindllm.workers.group import WorkerGroup
from mindllm.workers.objectives import Objective
from mindllm.workers.policy import group_logprobs, share_logprobs
from mindllm.workers.rollout import WeightSource, WeightSync, make_engine
from mindllm.workers.trained import TrainedModel, TrainedWorker, UpdateResult


class ActorRolloutWorker(TrainedWorker):
    """One rank's shard of the actor with its optimizer and generation engine."""

    def __init__(self, config: ActorConfig, checkpoint: Path, total_steps: int, resume: bool) -> None:
        """See ``TrainedWorker``."""
        super().__init__(config, checkpoint, "lm", total_steps, resume)
        self.engine = make_engine(self, config)
        self._weights = WeightSource(self)

    def generate(self, requests: Sequences, params: SamplingParams) -> tuple[Sequences, GenerationStats] | None:
        """Complete this replica's requests; the answer comes from the rank that speaks for the replica."""
        result = self.engine.generate(requests, params, self.report)
        return result if coordinates().is_collector else None

    def logprobs(self, share: Share, temperature: float) -> Tensor | None:
        """See ``share_logprobs``."""
        return share_logprobs(self, share, temperature)

    def weight_buckets(self) -> int:
        """See ``WeightSource.count``."""
        return self._weights.count()

    def weight_bucket(self, number: int) -> dict[str, Tensor] | None:
        """See ``WeightSource.bucket``."""
        return self._weights.bucket(number)


class ActorRollout(TrainedModel):
    """The driver's handle of the actor; it generates on its own ranks, or on separate ones that follow its weights."""

    def __init__(self, group: WorkerGroup, config: ActorConfig, generation: WorkerGroup | None = None) -> None:
        super().__init__(group, config)
        self._generation = generation or group
        self._sync = WeightSync(group, generation) if generation is not None else None
        self._stale, self._synced_before = True, False

    def generate(self, requests: Sequences, params: SamplingParams) -> tuple[Sequences, GenerationStats]:
        """Complete every request, in order, with the current weights; see ``GenerationEngine.generate``."""
        self.sync_weights()
        division = divide_requests(requests, self._generation.data_parallel)
        answers = self._generation.call("generate", [requests.select(members) for members in division], params)
        order = torch.tensor([index for members in division for index in members])
        completed = Sequences.concatenate([sequences for sequences, _ in answers]).select(order.argsort())
        return completed, GenerationStats.total([stats for _, stats in answers])

    def sync_weights(self) -> None:
        """Renew separate generation ranks if an update came since; the first copy is checked."""
        if self._sync is not None and self._stale:
            self._sync.run(verify=not self._synced_before)
            self._stale, self._synced_before = False, True

    def update(self, sequences: Sequences, objective: Objective) -> UpdateResult:
        """One optimizer step on ``sequences``."""
        self._stale = True
        return super().update(sequences, objective)

    def logprobs(self, sequences: Sequences, temperature: float) -> Tensor:
        """[response tokens] fp32 log-probs of ``sequences``' responses under the current weights, in order."""
        return group_logprobs(self.group, self.limits, sequences, temperature)
