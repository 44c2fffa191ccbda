"""The critic: a value for every state of a response, trained beside the actor."""

from pathlib import Path

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from torch import Tensor

from mindllm.config import CriticConfig
from mindllm.data.sequences import Sequences
from mindllm.workers.dispatch import Scatter, Share
from mindllm.workers.trained import TrainedModel, TrainedWorker


class CriticWorker(TrainedWorker):
    """One rank's shard of the critic."""

    def __init__(self, config: CriticConfig, checkpoint: Path, total_steps: int, resume: bool) -> None:
        """See ``TrainedWorker``; the head starts as the checkpoint's scalar head."""
        super().__init__(config, checkpoint, "scalar", total_steps, resume)

    def values(self, share: Share) -> Tensor | None:
        """Values [response tokens + sequences] of the share's states, see ``Rows``."""
        return self.score(share, "states", lambda batch, values: values)


class Critic(TrainedModel):
    """The driver's handle of the critic."""

    def values(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Values of the states in which the responses' tokens were chosen, and of those after their last token.

        Returns:
            ([response tokens], [n]) fp32, in order.
        """
        scatter = Scatter(sequences, self.limits)
        lengths = sequences.response_lengths + 1
        states = scatter.gather(self.group.call("values", scatter.shares), lengths)
        is_last = torch.zeros(len(states), dtype=torch.bool)
        is_last[lengths.cumsum(0) - 1] = True
        return states[~is_last], states[is_last]
