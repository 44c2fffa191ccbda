"""The reward model: one score per sequence, read at its last token."""

from pathlib import Path

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from torch import Tensor

from mindllm.config import RewardModelConfig
from mindllm.data.sequences import Sequences
from mindllm.workers.dispatch import BatchLimits, Scatter, Share
from mindllm.workers.group import WorkerGroup
from mindllm.workers.model import ModelWorker, batch_limits
from mindllm.workers.trained import TrainedModel, TrainedWorker


def share_scores(worker: ModelWorker, share: Share) -> Tensor | None:
    """On a rank: scores [sequences] of the share."""
    return worker.score(share, "last", lambda batch, scores: scores)


def group_scores(group: WorkerGroup, limits: BatchLimits, sequences: Sequences) -> Tensor:
    """On the driver: [n] fp32 scores of ``sequences``, in order."""
    scatter = Scatter(sequences, limits)
    return scatter.gather(group.call("scores", scatter.shares), torch.ones(len(sequences), dtype=torch.int64))


class RewardWorker(ModelWorker):
    """One rank's shard of a frozen reward model."""

    def __init__(self, config: RewardModelConfig, checkpoint: Path) -> None:
        """See ``ModelWorker``."""
        super().__init__(config, checkpoint, head="scalar")

    def scores(self, share: Share) -> Tensor | None:
        """See ``share_scores``."""
        return share_scores(self, share)


class TrainedRewardWorker(TrainedWorker):
    """One rank's shard of a reward model in training."""

    def __init__(self, config: RewardModelConfig, checkpoint: Path, total_steps: int, resume: bool) -> None:
        """See ``TrainedWorker``."""
        super().__init__(config, checkpoint, "scalar", total_steps, resume)

    def scores(self, share: Share) -> Tensor | None:
        """See ``share_scores``."""
        return share_scores(self, share)


class Reward:
    """The driver's handle of a frozen reward model."""

    def __init__(self, group: WorkerGroup, config: RewardModelConfig) -> None:
        self.group = group
        self._limits = batch_limits(config, group.data_parallel)

    def scores(self, sequences: Sequences) -> Tensor:
        """[n] fp32 scores, in order."""
        return group_scores(self.group, self._limits, sequences)


class TrainedReward(TrainedModel):
    """The driver's handle of a reward model in training."""

    def scores(self, sequences: Sequences) -> Tensor:
        """[n] fp32 scores, in order."""
        return group_scores(self.group, self.limits, sequences)
