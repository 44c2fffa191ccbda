"""The log of one run: everything a stage tells the user passes through here."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Self

from mindllm.command_line import say
from mindllm.errors import UserError, did_you_mean
from mindllm.files import remove_partial, write_atomically
from mindllm.observe.jsonl import (
    SAMPLES_BYTES,
    MetricsFile,
    SamplesFolder,
    to_line,
)
from mindllm.observe.progress import Progress
from mindllm.observe.report import build_report, outcome_of, render_report
from mindllm.observe.trackers import TRACKERS, GuardedTracker, TrackedRun, WandbSettings

# What the progress line and the report show, where an iteration has it.
HEADLINE: dict[str, str] = {
    "reward": "critic/score/mean",
    "loss": "sft/loss",
    "tokens/s": "timing/tokens_per_s",
}


class RunLog:
    """Metrics, trackers, sample dumps, progress line and final report of a run directory.

    Use it on one process (the driver), and as a context where possible: an exception then makes the outcome "failed".
    """

    def __init__(
        self,
        run_dir: str | Path,
        trackers: Sequence[str],
        train_iters: int,
        *,
        log_interval: int = 1,
        headline: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        wandb: WandbSettings | None = None,
    ) -> None:
        """Open the log; the files of an earlier process are kept and appended to, see ``truncate_after``.

        Args:
            run_dir: created if missing.
            trackers: names in ``TRACKERS``.
            train_iters: last iteration of the run.
            log_interval: off a terminal, one progress line per this many iterations; metrics are logged always.
            headline: label -> metric name shown in the progress line and the report; default ``HEADLINE``.
            config: resolved, of JSON values; shown by trackers beside the metrics.
            wandb: what names the run of tracker ``wandb``.

        Raises:
            UserError: an unknown tracker.
        """
        for name in trackers:
            if name not in TRACKERS:
                raise UserError(
                    f"trackers: unknown '{name}', allowed: {', '.join(TRACKERS)}{did_you_mean(name, TRACKERS)}"
                )
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._headline = dict(HEADLINE if headline is None else headline)
        self._metrics = MetricsFile(self.run_dir / "metrics.jsonl") if "jsonl" in trackers else None
        self._samples = SamplesFolder(self.run_dir / "samples")
        run = TrackedRun(self.run_dir, config or {}, wandb or WandbSettings())
        self._trackers = [GuardedTracker(name, run) for name in trackers if name != "jsonl"]
        self._progress = Progress(train_iters, self._headline, log_interval)
        self._started = time.perf_counter()
        self._last_iteration: int | None = None
        self._sizes: dict[int, int] = {}
        self._completed = 0
        self._peak_memory = "", 0.0
        self._closed = False

    def truncate_after(self, iteration: int) -> None:
        """Forget every iteration after ``iteration`` (0 = all of them); called once before a run starts or resumes.

        Afterwards each iteration appears exactly once in metrics and samples, whatever an earlier process had logged
        beyond its last checkpoint. What is damaged or missing of those up to it is printed.

        Raises:
            UserError: a line of ``metrics.jsonl`` among those that are kept cannot be read.
        """
        self._completed = iteration
        remove_partial(self.run_dir)
        self._progress.resume(iteration)
        found = []
        if self._metrics is not None:
            found = self._metrics.truncate_after(iteration)
            sizes = {record["iteration"]: record.get(SAMPLES_BYTES) for record in self._metrics.records()}
            found += self._samples.damaged({number: size for number, size in sizes.items() if isinstance(size, int)})
        self._samples.truncate_after(iteration)
        if found:
            say("\n".join(found))

    def log(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of an iteration: called once for each, in rising order.

        A value is a number (scalars of torch and numpy too); NaN and infinities are null in ``metrics.jsonl``. What
        depends on clock and machine is named ``timing/*`` and ``memory/*``, so that runs can be compared by everything
        else.

        Raises:
            ValueError: the iteration is not after the last one.
        """
        if self._last_iteration is not None and iteration <= self._last_iteration:
            raise ValueError(f"iteration {iteration} logged after iteration {self._last_iteration}")
        self._last_iteration = iteration
        self.note_memory(metrics)
        if self._metrics is not None:
            written = {SAMPLES_BYTES: self._sizes.pop(iteration)} if iteration in self._sizes else {}
            self._metrics.append({"iteration": iteration, **metrics, **written})
        scalars = {name: float(value) for name, value in metrics.items() if _is_finite(value)}
        for tracker in self._trackers:
            tracker.log(iteration, scalars)
        self._progress.update(iteration, metrics)

    def phase(self, name: str, total: int | None = None, iteration: int | None = None) -> AbstractContextManager[None]:
        """Show what is going on inside the block; see ``Progress.phase``."""
        return self._progress.phase(name, total, iteration)

    def advance(self, done: int) -> None:
        """Say how far the phase that began last is."""
        self._progress.advance(done)

    def note_memory(self, metrics: Mapping[str, Any]) -> None:
        """Remember the largest of ``memory/<what>_peak_gib`` for the report."""
        for name, value in metrics.items():
            if name.startswith("memory/") and value > self._peak_memory[1]:
                self._peak_memory = name.removeprefix("memory/").removesuffix("_peak_gib"), float(value)

    def samples(self, iteration: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write ``samples/iter_<iteration>.jsonl``, one row per line; the file appears when complete."""
        self._sizes[iteration] = self._samples.write(iteration, rows)

    def close(self, outcome: str = "finished", resumes_after: int | None = None) -> None:
        """Close everything, write ``report.json`` and print the report; a second call does nothing.

        Where the run has failed, a report that cannot be written (the disk may be full) hides no earlier error.

        Args:
            outcome: one word, see ``outcome_of``.
            resumes_after: of a run that did not finish: iteration of its last checkpoint, 0 if there is none.

        Raises:
            OSError: the report of a finished run cannot be written.
        """
        if self._closed:
            return
        self._closed = True
        self._progress.close()
        for tracker in self._trackers:
            tracker.close()
        if self._metrics is not None:
            self._metrics.close()
        hidden = () if outcome == "finished" else (OSError,)
        with suppress(*hidden):
            report = self._report(outcome, resumes_after)
            say(render_report(report, self.run_dir))
            write_atomically(self.run_dir / "report.json", [to_line(report)])

    def _report(self, outcome: str, resumes_after: int | None) -> dict[str, Any]:
        records = self._metrics.records() if self._metrics is not None else []
        seconds = time.perf_counter() - self._started
        report = build_report(outcome, seconds, records, self._headline, resumes_after)
        if self._metrics is None:  # nothing remembers the iterations of earlier processes but their number
            report["iterations"] = self._last_iteration or self._completed
        if self._peak_memory[1]:
            report["peak_memory_in"], report["peak_memory_gib"] = self._peak_memory
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(outcome_of(kind))


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError):
        return False
