"""The line that tells a user where the run is: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TextIO

ITERATION_SECONDS = "timing/iteration"
_WINDOW = 20  # iterations over which the pace is averaged


class Progress:
    """Shows iteration, headline metrics, seconds per iteration and the time left."""

    def __init__(self, train_iters: int, headline: Mapping[str, str], every: int = 1, stream: TextIO | None = None):
        """Create the line; nothing is shown before the first ``update``.

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
        self._bar: Any = None
        self._is_terminal = self._stream.isatty()

    def update(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Show an iteration that has just ended."""
        now = time.perf_counter()
        if not self._times:
            # What went before the first iteration is loading; how long that one took is among its metrics.
            self._times.append(now - float(metrics.get(ITERATION_SECONDS, 0.0)))
        self._times.append(now)
        details = self._details(iteration, metrics)
        if self._is_terminal:
            self._show_bar(iteration, details)
        elif iteration % self._every == 0 or iteration >= self._train_iters:
            print(f"iteration {iteration}/{self._train_iters}  {details}", file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the line as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _details(self, iteration: int, metrics: Mapping[str, Any]) -> str:
        pace = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        left = timedelta(seconds=round(pace * max(0, self._train_iters - iteration)))
        shown = [
            f"{label} {_short(metrics[name])}"
            for label, name in self._headline.items()
            if metrics.get(name) is not None
        ]
        return "  ".join([*shown, f"{pace:.2f} s/iteration", f"eta {left}"])

    def _show_bar(self, iteration: int, details: str) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as RichProgress

            columns = ("iteration", MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"))
            self._bar = RichProgress(*columns, console=Console(file=self._stream))
            self._task = self._bar.add_task("", total=self._train_iters)
            self._bar.start()
        self._bar.update(self._task, completed=iteration, description=details, refresh=True)


def _short(value: Any) -> str:
    value = float(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
