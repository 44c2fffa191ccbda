"""What trained roles add: an optimizer, one step on a share, and the state that a resume needs."""

from dataclasses import dataclass
from pathlib import Path

from mindllm.device import synchronize

from mindllm.checkpoint.model_io import load_training_state, save_training_state
from mindllm.config import TrainedRoleConfig
from mindllm.data.sequences import Sequences
from mindllm.models.gpt import Head
from mindllm.parallel.groups import coordinates
from mindllm.parallel.optimizer import OptimizerSettings, StepResult, Trainer
from mindllm.parallel.schedule import forward_backward
from mindllm.workers.dispatch import Scatter, Share, combine_metrics
from mindllm.workers.group import WorkerGroup
from mindllm.workers.model import ModelWorker, batch_limits
from mindllm.workers.objectives import Objective


@dataclass(frozen=True)
class UpdateResult:
    """One optimizer step: its metrics (means over the whole step), and whether it was skipped as non-finite."""

    metrics: dict[str, float]
    grad_norm: float
    lr: float
    skipped: bool


class TrainedWorker(ModelWorker):
    """One rank's shard of a model that trains."""

    def __init__(self, config: TrainedRoleConfig, checkpoint: Path, head: Head, total_steps: int, resume: bool) -> None:
        """
        Args:
            config: the role's keys.
            checkpoint: iteration directory to start from.
            head: see ``ModelWorker``.
            total_steps: optimizer steps of the whole run, the length of the learning-rate schedule.
            resume: ``checkpoint`` is this run's own: restore optimizer and schedule too.
        """
        super().__init__(config, checkpoint, head)
        self.trainer = Trainer(self.chunks, optimizer_settings(config, total_steps))
        self.chunks = list(self.trainer.chunks)
        if resume:
            load_training_state(self.trainer, checkpoint)

    def update(self, share: Share, objective: Objective) -> tuple[dict[str, float], StepResult] | None:
        """Accumulate the gradient of ``objective`` over ``share``, reduce it over all ranks and take one step."""
        self.trainer.zero_grad()
        for chunk in self.chunks:
            chunk.train()
        sums = forward_backward(
            self.chunks,
            self.pack(share, objective.rows),
            lambda batch, output: objective.loss(batch, output, self.vocab_size),
        )
        step = self.trainer.step()
        for chunk in self.chunks:
            chunk.eval()
        synchronize()
        if not coordinates().is_collector:
            return None
        return {name: float(value) for name, value in sums.items()}, step

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and schedule into the existing, empty ``directory`` (all ranks together)."""
        save_training_state(self.trainer, directory)


def optimizer_settings(config: TrainedRoleConfig, total_steps: int) -> OptimizerSettings:
    """The role's optimizer keys, with shares of the run turned into optimizer steps."""
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


class TrainedModel:
    """The driver's handle of a model that trains."""

    def __init__(self, group: WorkerGroup, config: TrainedRoleConfig) -> None:
        self.group, self.config = group, config
        self.limits = batch_limits(config, group.data_parallel)

    def update(self, sequences: Sequences, objective: Objective) -> UpdateResult:
        """One optimizer step on ``sequences``."""
        answers = self.group.call("update", Scatter(sequences, self.limits, objective.unit).shares, objective)
        _, step = answers[0]
        return UpdateResult(combine_metrics([sums for sums, _ in answers]), step.grad_norm, step.lr, step.skipped)

    def save(self, directory: Path) -> None:
        """Write the training state into the existing, empty ``directory``."""
        self.group.call_all("save", directory)
