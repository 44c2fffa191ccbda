"""The reference model: frozen, it only scores."""

from pathlib import Path

import mindllm.device  # noqa: F401  prepares the process for megatron-core

from torch import Tensor

from mindllm.config import RefConfig
from mindllm.data.sequences import Sequences
from mindllm.workers.dispatch import Share
from mindllm.workers.group import WorkerGroup
from mindllm.workers.model import ModelWorker, batch_limits
from mindllm.workers.policy import group_logprobs, share_logprobs


class RefWorker(ModelWorker):
    """One rank's shard of the reference model."""

    def __init__(self, config: RefConfig, checkpoint: Path) -> None:
        """See ``ModelWorker``."""
        super().__init__(config, checkpoint, head="lm")

    def logprobs(self, share: Share, temperature: float) -> Tensor | None:
        """See ``share_logprobs``."""
        return share_logprobs(self, share, temperature)


class Ref:
    """The driver's handle of the reference model."""

    def __init__(self, group: WorkerGroup, config: RefConfig) -> None:
        self.group = group
        self._limits = batch_limits(config, group.data_parallel)

    def logprobs(self, sequences: Sequences, temperature: float) -> Tensor:
        """[response tokens] fp32 log-probs of ``sequences``' responses, in order."""
        return group_logprobs(self.group, self._limits, sequences, temperature)
