"""What tells a user where the run is: a live bar on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TextIO

from mindllm.errors import naming_file

ITERATION_SECONDS = "timing/iteration"
_WINDOW = 20  # iterations over which the pace is averaged
_SLOW_S = 60.0  # off a terminal, a phase that took this long is shown again, and says this often how far it is


@dataclass
class _Phase:
    """Something that is going on now. ``total``: how many there are of what it counts, None if it counts nothing."""

    name: str
    total: int | None
    shown_at: float
    done: int = 0

    def __str__(self) -> str:
        return self.name if self.total is None else f"{self.name}: {self.done} of {self.total}"


class Progress:
    """Shows iteration, headline metrics, seconds per iteration, the time left, and what is being done right now.

    Phases may be entered, and ``advance`` called, from several threads.
    """

    def __init__(self, train_iters: int, headline: Mapping[str, str], every: int = 1, stream: TextIO | None = None):
        """Create the line; nothing is shown before the first phase or ``update``.

        Args:
            train_iters: the last iteration.
            headline: label -> metric name; those that an iteration lacks are left out of its line.
            every: off a terminal, one line per this many iterations (the last one always).
            stream: default is standard output.
        """
        self._train_iters = train_iters
        self._headline = headline
        self._every = every
        self._stream = stream or sys.stdout
        self._times: deque[float] = deque(maxlen=_WINDOW + 1)
        self._completed, self._summary = 0, ""
        self._phases: list[_Phase] = []
        self._took: dict[str, float] = {}
        self._lock = threading.Lock()
        self._bar: Any = None
        self._is_terminal = self._stream.isatty()

    def resume(self, completed: int) -> None:
        """Count from ``completed`` iterations on."""
        self._completed = completed

    @contextmanager
    def phase(self, name: str, total: int | None = None, iteration: int | None = None) -> Iterator[None]:
        """Show that ``name`` is going on: in place on a terminal; elsewhere once, and again where it was slow.

        Args:
            name: such as "generating responses".
            total: how many of what ``advance`` counts.
            iteration: that it belongs to, if any.
        """
        begun = time.monotonic()
        phase = _Phase(name, total, begun)
        where = "" if iteration is None else f"iteration {iteration}/{self._train_iters}: "
        with self._lock:
            self._phases.append(phase)
            if self._is_terminal:
                self._show_bar()
            elif self._took.get(name, _SLOW_S) >= _SLOW_S:
                self._print(f"{where}{phase}")
        try:
            yield
        finally:
            with self._lock:
                self._phases.remove(phase)
                self._took[name] = time.monotonic() - begun
                if self._is_terminal:
                    self._show_bar()

    def advance(self, done: int) -> None:
        """Say how far the phase that began last is."""
        with self._lock:
            if not self._phases or self._phases[-1].total is None:
                return
            phase, now = self._phases[-1], time.monotonic()
            phase.done = done
            if self._is_terminal:
                self._show_bar()
            elif now - phase.shown_at >= _SLOW_S:
                phase.shown_at = now
                self._print(str(phase))

    def update(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Show an iteration that has just ended."""
        now = time.perf_counter()
        if not self._times:
            # What went before the first iteration is loading; how long that one took is among its metrics.
            self._times.append(now - float(metrics.get(ITERATION_SECONDS, 0.0)))
        self._times.append(now)
        with self._lock:
            self._completed, self._summary = iteration, self._details(iteration, metrics)
            if self._is_terminal:
                self._show_bar()
            elif iteration % self._every == 0 or iteration >= self._train_iters:
                self._print(f"iteration {iteration}/{self._train_iters}  {self._summary}")

    def close(self) -> None:
        """Leave the line as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        with naming_file("standard output"):
            print(line, file=self._stream, flush=True)

    def _details(self, iteration: int, metrics: Mapping[str, Any]) -> str:
        pace = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        left = timedelta(seconds=round(pace * max(0, self._train_iters - iteration)))
        shown = [
            f"{label} {_short(metrics[name])}"
            for label, name in self._headline.items()
            if metrics.get(name) is not None
        ]
        return "  ".join([*shown, f"{pace:.2f} s/iteration", f"eta {left}"])

    def _show_bar(self) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as RichProgress

            columns = (SpinnerColumn(), "iteration", MofNCompleteColumn(), BarColumn(bar_width=20))
            description = TextColumn("{task.description}", markup=False)
            self._bar = RichProgress(*columns, description, console=Console(file=self._stream), refresh_per_second=4)
            self._task = self._bar.add_task("", total=self._train_iters)
            self._bar.start()
        phases = " + ".join(map(str, self._phases))
        description = "  ".join(part for part in (self._summary, phases and f"[{phases}]") if part)
        self._bar.update(self._task, completed=self._completed, description=description, refresh=True)


def _short(value: Any) -> str:
    value = float(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"
