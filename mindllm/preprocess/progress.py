"""A bar with documents per second and the time left."""

import sys
import time

_WIDTH = 24  # characters


class Progress:
    """Prints to stderr every `interval` documents, and at the end; on a terminal each line replaces the last."""

    def __init__(self, total: int, interval: int) -> None:
        self._total = total
        self._interval = interval
        self._start = time.monotonic()
        self._next = interval
        self._end = "\r" if sys.stderr.isatty() else "\n"

    def update(self, done: int) -> None:
        """Say how many documents are done so far."""
        if done < self._next:
            return
        self._next = (done // self._interval + 1) * self._interval
        rate = self._rate(done)
        left_s = (self._total - done) / rate
        bar = "#" * (_WIDTH * done // max(self._total, 1))
        print(
            f"[{bar:{_WIDTH}}] {done} of {self._total} documents, {rate:.0f} documents/s, ETA {left_s:.0f} s",
            file=sys.stderr,
            end=self._end,
            flush=True,
        )

    def finish(self, done: int) -> None:
        """Print the closing line."""
        elapsed_s = time.monotonic() - self._start
        line = f"{done} documents in {elapsed_s:.1f} s, {self._rate(done):.0f} documents/s"
        print(f"{line:100}" if self._end == "\r" else line, file=sys.stderr)

    def _rate(self, done: int) -> float:
        return done / max(time.monotonic() - self._start, 1e-9)
