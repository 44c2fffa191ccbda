"""What every stage needs around its loop: log, processes, checkpoints and resume."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mindllm import __version__
from mindllm.checkpoint import (
    convert_mcore_to_hf,
    copy_hf_files,
    latest_iteration_dir,
    read_checkpoint_info,
    write_checkpoint_info,
)
from mindllm.checkpoint.run_state import RunState, Saved
from mindllm.config import RunConfig, resolved_yaml
from mindllm.data import ResumableSampler
from mindllm.errors import UserError
from mindllm.models.builder import padded_vocab_size
from mindllm.observe import RunLog, Timings
from mindllm.workers.actor_rollout import ActorRollout, UpdateResult
from mindllm.workers.cluster import Cluster
from mindllm.workers.ref import Ref


class Session:
    """One run from its first iteration, or from where an earlier process stopped, to its last."""

    def __init__(self, config: RunConfig, sampler: ResumableSampler, headline: dict[str, str]) -> None:
        """
        Args:
            config: of the run.
            sampler: order of the training data, saved with every checkpoint.
            headline: label -> metric of the progress line.
        """
        self.config, self.training, self.sampler = config, config.training, sampler
        self.run_dir = Path(self.training.run_dir)
        self.timings = Timings()
        self.cluster = Cluster(config)
        self._state = RunState(self.run_dir, {"actor": Path(config.actor.save)}, self.training.keep_last_n)
        self._resumed: Saved | None = self._state.latest()
        self._skipped_in_a_row = 0
        self.log = RunLog(
            self.run_dir,
            self.training.trackers,
            self.training.train_iters,
            log_interval=self.training.log_interval,
            headline=headline,
        )

    def __enter__(self) -> Self:
        (self.run_dir / "config.yaml").write_text(resolved_yaml(self.config))
        for key, what in self.config.ignored_keys:
            print(f"{key}: {what}", flush=True)
        self.log.truncate_after(self.completed)
        if self._resumed is not None:
            self.sampler.load_state_dict(self._resumed.state["sampler"])
            self._skipped_in_a_row = self._resumed.state["skipped_in_a_row"]
            print(f"resuming after iteration {self.completed} of {self.training.train_iters}", flush=True)
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cluster.__exit__(kind, error, trace)
        finally:
            self.log.close("finished" if kind is None else "failed")

    @property
    def completed(self) -> int:
        """Iterations that the checkpoint this run resumes from has behind it."""
        return self._resumed.iteration if self._resumed is not None else 0

    @property
    def is_complete(self) -> bool:
        """Whether an earlier process finished this run."""
        return self.completed >= self.training.train_iters

    def start_actor(self, steps_per_iteration: int) -> ActorRollout:
        """Start the actor from the resumed checkpoint, or from ``actor.load``."""
        self._source = latest_iteration_dir(Path(self.config.actor.load))
        checkpoint = self._resumed.roles["actor"] if self._resumed is not None else self._source
        total_steps = steps_per_iteration * self.training.train_iters
        return self.cluster.start_actor(checkpoint, total_steps, resume=self._resumed is not None)

    def start_ref(self) -> Ref | None:
        """Start the reference model where a KL term needs one."""
        if self.config.ref is None:
            return None
        return self.cluster.start_ref(latest_iteration_dir(Path(self.config.ref.load)))

    def iterations(self, actor: ActorRollout) -> Iterator[int]:
        """Numbers of the iterations still to do; a checkpoint is saved after each that is due, and after the last."""
        for iteration in range(self.completed + 1, self.training.train_iters + 1):
            yield iteration
            if iteration % self.training.save_interval == 0 or iteration == self.training.train_iters:
                self._save(iteration, actor)

    def is_due(self, interval: int | None, iteration: int) -> bool:
        """Whether something done every ``interval`` iterations, and at the end, is due now."""
        return interval is not None and (iteration % interval == 0 or iteration == self.training.train_iters)

    def record_step(self, result: UpdateResult) -> None:
        """Keep count of skipped optimizer steps.

        Raises:
            UserError: too many in a row had a gradient that was not finite.
        """
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if result.skipped else 0
        if self._skipped_in_a_row >= self.training.max_skipped_steps:
            raise UserError(
                f"training.max_skipped_steps: {self._skipped_in_a_row} optimizer steps in a row had a gradient norm of "
                f"{result.grad_norm} and were skipped; lower actor_rollout.lr or look at the samples in {self.run_dir}"
            )

    def _save(self, iteration: int, actor: ActorRollout) -> None:
        def write_actor(directory: Path) -> None:
            actor.save(directory)
            self._describe_actor(directory)

        state: dict[str, Any] = {"sampler": self.sampler.state_dict(), "skipped_in_a_row": self._skipped_in_a_row}
        self._state.save(iteration, state, {"actor": write_actor})

    def _describe_actor(self, directory: Path) -> None:
        """Put beside the tensors what makes the directory a checkpoint of its own."""
        settings, info = self.config.actor, read_checkpoint_info(self._source)
        dtype = "bfloat16" if settings.bf16 else "float32"
        copy_hf_files(info.hf_dir, directory / "hf", dtype)
        write_checkpoint_info(
            directory,
            info.architecture,
            padded_vocab_size=padded_vocab_size(
                info.vocab_size, settings.make_vocab_size_divisible_by, settings.tensor_model_parallel_size
            ),
            dtype=dtype,
            provenance={"source": str(self._source), "stage": self.training.stage, "mindllm": __version__},
        )

    def export(self) -> None:
        """Write the final actor as a Hugging Face model where ``training.export_hf`` asks for it.

        What lies there already was exported by an earlier process of this run: preflight refuses anything else.
        """
        if self.training.export_hf is None or Path(self.training.export_hf).exists():
            return
        convert_mcore_to_hf(
            Path(self.config.actor.save), Path(self.training.export_hf), iteration=self.training.train_iters
        )


def steps_per_iteration(config: RunConfig) -> int:
    """Optimizer steps of one GRPO iteration in which no sequence was dropped."""
    sequences = config.training.global_batch_size * config.actor.n_samples_per_prompt
    mini_batch = config.actor.ppo_mini_batch_size or sequences
    return config.actor.ppo_epochs * math.ceil(sequences / mini_batch)


def mean_metrics(results: list[UpdateResult], prefix: str) -> dict[str, float]:
    """Means over optimizer steps, under ``prefix``; names that end in ``_max`` keep the largest."""
    metrics = {}
    for name in results[0].metrics:
        values = [result.metrics[name] for result in results]
        metrics[f"{prefix}/{name}"] = max(values) if name.endswith("_max") else sum(values) / len(values)
    norms = [result.grad_norm for result in results]
    metrics[f"{prefix}/grad_norm"] = sum(norms) / len(norms)
    metrics[f"{prefix}/lr"] = results[-1].lr
    metrics[f"{prefix}/skipped_steps"] = float(sum(result.skipped for result in results))
    return metrics
