"""The reference model: frozen, it only scores."""

from torch import Tensor

from mindllm.config import RefConfig
from mindllm.data.sequences import Sequences
from mindllm.workers.dispatch import Scatter
from mindllm.workers.group import WorkerGroup
from mindllm.workers.policy import PolicyWorker, batch_limits

RefWorker = PolicyWorker
"""On a rank, a reference is a policy that nobody updates."""


class Ref:
    """The driver's handle of the reference model."""

    def __init__(self, group: WorkerGroup, config: RefConfig) -> None:
        self.group = group
        self._limits = batch_limits(config, group.data_parallel)

    def logprobs(self, sequences: Sequences, temperature: float) -> Tensor:
        """[response tokens] fp32 log-probs of ``sequences``' responses, in order."""
        scatter = Scatter(sequences, self._limits)
        return scatter.gather_tokens(self.group.call("logprobs", scatter.shares, temperature))
