"""The actor: the one model that generates, scores and trains, on the same weights."""

from dataclasses import dataclass
from pathlib import Path

from mindllm.device import synchronize

import torch
from torch import Tensor

from mindllm.checkpoint.model_io import load_training_state, save_training_state
from mindllm.config import ActorConfig
from mindllm.data.sequences import Sequences
from mindllm.parallel.groups import coordinates
from mindllm.parallel.optimizer import OptimizerSettings, Trainer
from mindllm.parallel.schedule import forward_backward
from mindllm.rollout import GenerationEngine, GenerationStats, SamplingParams
from mindllm.workers.dispatch import Scatter, Share, combine_metrics, divide_requests
from mindllm.workers.group import WorkerGroup
from mindllm.workers.objectives import Objective
from mindllm.workers.policy import PolicyWorker, batch_limits

DEFAULT_CONCURRENT_SEQUENCES = 256


@dataclass(frozen=True)
class UpdateResult:
    """One optimizer step: its metrics (token means over the whole step), and whether it was skipped as non-finite."""

    metrics: dict[str, float]
    grad_norm: float
    lr: float
    skipped: bool


class ActorRolloutWorker(PolicyWorker):
    """One rank's shard of the actor with its optimizer and generation engine."""

    def __init__(self, config: ActorConfig, checkpoint: Path, total_steps: int, resume: bool) -> None:
        """
        Args:
            config: the actor's keys.
            checkpoint: iteration directory to start from.
            total_steps: optimizer steps of the whole run, the length of the learning-rate schedule.
            resume: ``checkpoint`` is this run's own: restore optimizer and schedule too.
        """
        super().__init__(config, checkpoint)
        self.trainer = Trainer(self.chunks, optimizer_settings(config, total_steps))
        self.chunks = list(self.trainer.chunks)
        if resume:
            load_training_state(self.trainer, checkpoint)
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

    def update(self, share: Share, objective: Objective) -> tuple[dict[str, float], float, float, bool] | None:
        """Accumulate the gradient of ``objective`` over ``share``, reduce it over all ranks and take one step."""
        self.trainer.zero_grad()
        for chunk in self.chunks:
            chunk.train()
        sums = forward_backward(
            self.chunks, self.pack(share), lambda batch, logits: objective.loss(batch, logits, self.vocab_size)
        )
        step = self.trainer.step()
        for chunk in self.chunks:
            chunk.eval()
        synchronize()
        if not coordinates().is_collector:
            return None
        return {name: float(value) for name, value in sums.items()}, step.grad_norm, step.lr, step.skipped

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and schedule into the existing, empty ``directory`` (all ranks together)."""
        save_training_state(self.trainer, directory)


def concurrent_sequences(config: ActorConfig) -> int:
    """Sequences a replica decodes at the same time."""
    chosen = config.num_samples_per_step or DEFAULT_CONCURRENT_SEQUENCES
    if config.max_kv_tokens is not None:
        chosen = min(chosen, config.max_kv_tokens // config.seq_length)
    return max(1, chosen)


def optimizer_settings(config: ActorConfig, total_steps: int) -> OptimizerSettings:
    """The actor's optimizer keys, with shares of the run turned into optimizer steps."""
    return OptimizerSettings(
        lr=config.lr,
        min_lr=config.min_lr,
        decay_style=config.lr_decay_style,
        warmup_steps=config.lr_warmup_iters or round(config.lr_warmup_fraction * total_steps),
        decay_steps=total_steps,
        weight_decay=config.weight_decay,
        clip_grad=config.clip_grad,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        adam_eps=config.adam_eps,
        distributed=config.use_distributed_optimizer,
    )


class ActorRollout:
    """The driver's handle of the actor."""

    def __init__(self, group: WorkerGroup, config: ActorConfig) -> None:
        self.group = group
        self._limits = batch_limits(config, group.data_parallel)

    def generate(self, requests: Sequences, params: SamplingParams) -> tuple[Sequences, GenerationStats]:
        """Complete every request, in order; see ``GenerationEngine.generate``."""
        division = divide_requests(requests, self.group.data_parallel)
        answers = self.group.call("generate", [requests.select(members) for members in division], params)
        order = torch.tensor([index for members in division for index in members])
        completed = Sequences.concatenate([sequences for sequences, _ in answers]).select(order.argsort())
        return completed, GenerationStats.total([stats for _, stats in answers])

    def logprobs(self, sequences: Sequences, temperature: float) -> Tensor:
        """[response tokens] fp32 log-probs of ``sequences``' responses under the current weights, in order."""
        scatter = Scatter(sequences, self._limits)
        return scatter.gather_tokens(self.group.call("logprobs", scatter.shares, temperature))

    def update(self, sequences: Sequences, objective: Objective) -> UpdateResult:
        """One optimizer step on ``sequences``."""
        answers = self.group.call("update", Scatter(sequences, self._limits).shares, objective)
        _, grad_norm, lr, skipped = answers[0]
        return UpdateResult(combine_metrics([sums for sums, *_ in answers]), grad_norm, lr, skipped)

    def save(self, directory: Path) -> None:
        """Write the training state into the existing, empty ``directory``."""
        self.group.call_all("save", directory)
