"""Log-probs of responses under a language model, as the actor and the reference compute them."""

import mindllm.device  # noqa: F401  prepares the process for megatron-core

from torch import Tensor

from mindllm.data.sequences import Sequences
from mindllm.parallel.logprobs import vocab_parallel_logprobs
from mindllm.parallel.microbatch import MicroBatch
from mindllm.workers.dispatch import BatchLimits, Scatter, Share
from mindllm.workers.group import WorkerGroup
from mindllm.workers.model import ModelWorker


def share_logprobs(worker: ModelWorker, share: Share, temperature: float) -> Tensor | None:
    """On a rank: log-probs [response tokens] of the share's responses under softmax(logits / temperature)."""

    def read(batch: MicroBatch, logits: Tensor) -> Tensor:
        return vocab_parallel_logprobs(logits, batch.targets, worker.vocab_size, temperature)[0]

    return worker.score(share, "actions", read)


def group_logprobs(group: WorkerGroup, limits: BatchLimits, sequences: Sequences, temperature: float) -> Tensor:
    """On the driver: [response tokens] fp32 log-probs of ``sequences``' responses, in order."""
    scatter = Scatter(sequences, limits)
    return scatter.gather(group.call("logprobs", scatter.shares, temperature), sequences.response_lengths)
