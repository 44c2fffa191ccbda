"""A line with documents per second and the time left."""

import sys
import time


class Progress:
    """Prints to stderr every `interval` documents, and at the end."""

    def __init__(self, total: int, interval: int) -> None:
        self._total = total
        self._interval = interval
        self._start = time.monotonic()
        self._next = interval

    def update(self, done: int) -> None:
        """Say how many documents are done so far."""
        if done < self._next:
            return
        self._next = (done // self._interval + 1) * self._interval
        rate = self._rate(done)
        left_s = (self._total - done) / rate
        print(f"{done} of {self._total} documents, {rate:.0f} documents/s, ETA {left_s:.0f} s", file=sys.stderr)

    def finish(self, done: int) -> None:
        """Print the closing line."""
        elapsed_s = time.monotonic() - self._start
        print(f"{done} documents in {elapsed_s:.1f} s, {self._rate(done):.0f} documents/s", file=sys.stderr)

    def _rate(self, done: int) -> float:
        return done / max(time.monotonic() - self._start, 1e-9)
