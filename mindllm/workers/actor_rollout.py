"""The actor: the one model that generates, scores and trains, on the same weights."""

from pathlib import Path

import mindllm.device  # noqa: F401  prepares the process for megatron-core

import torch
from torch import Tensor

from mindllm.config import ActorConfig
from mindllm.data.sequences import Sequences
from mindllm.parallel.groups import coordinates
from mindllm.rollout import GenerationEngine, GenerationStats, SamplingParams
from mindllm.workers.dispatch import Share, divide_requests
from mindllm.workers.policy import group_logprobs, share_logprobs
from mindllm.workers.trained import TrainedModel, TrainedWorker

DEFAULT_CONCURRENT_SEQUENCES = 256


class ActorRolloutWorker(TrainedWorker):
    """One rank's shard of the actor with its optimizer and generation engine."""

    def __init__(self, config: ActorConfig, checkpoint: Path, total_steps: int, resume: bool) -> None:
        """See ``TrainedWorker``."""
        super().__init__(config, checkpoint, "lm", total_steps, resume)
        self.engine = GenerationEngine(
            self.chunks,
            self.vocab_size,
            max_length=config.seq_length,
            max_sequences=concurrent_sequences(config),
            max_prefill_tokens=config.max_tokens_per_micro_batch,
        )

    def generate(self, requests: Sequences, params: SamplingParams) -> tuple[Sequences, GenerationStats] | None:
        """Complete this replica's requests; the answer comes from the rank that speaks for the replica."""
        result = self.engine.generate(requests, params)
        return result if coordinates().is_collector else None

    def logprobs(self, share: Share, temperature: float) -> Tensor | None:
        """See ``share_logprobs``."""
        return share_logprobs(self, share, temperature)


def concurrent_sequences(config: ActorConfig) -> int:
    """Sequences a replica decodes at the same time."""
    chosen = config.num_samples_per_step or DEFAULT_CONCURRENT_SEQUENCES
    if config.max_kv_tokens is not None:
        chosen = min(chosen, config.max_kv_tokens // config.seq_length)
    return max(1, chosen)


class ActorRollout(TrainedModel):
    """The driver's handle of the actor."""

    def generate(self, requests: Sequences, params: SamplingParams) -> tuple[Sequences, GenerationStats]:
        """Complete every request, in order; see ``GenerationEngine.generate``."""
        division = divide_requests(requests, self.group.data_parallel)
        answers = self.group.call("generate", [requests.select(members) for members in division], params)
        order = torch.tensor([index for members in division for index in members])
        completed = Sequences.concatenate([sequences for sequences, _ in answers]).select(order.argsort())
        return completed, GenerationStats.total([stats for _, stats in answers])

    def logprobs(self, sequences: Sequences, temperature: float) -> Tensor:
        """[response tokens] fp32 log-probs of ``sequences``' responses under the current weights, in order."""
        return group_logprobs(self.group, self.limits, sequences, temperature)
