"""Wall-clock seconds of the parts of an iteration."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class Timer:
    """Context that measures wall-clock time: ``with Timer() as timer: ...`` then ``timer.seconds``."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start


class Timings:
    """Seconds by name over one iteration; a name measured twice adds up."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._begins: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to ``timing/<name>``, also when the block raises."""
        timer = Timer()
        self._begins.setdefault(name, time.perf_counter())
        try:
            with timer:
                yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + timer.seconds

    def begins(self) -> dict[str, float]:
        """Return ``{"timing/begin/<name>": seconds}`` since the earliest one began; with ``take``, the intervals."""
        earliest = min(self._begins.values(), default=0.0)
        return {f"timing/begin/{name}": begin - earliest for name, begin in self._begins.items()}

    def take(self) -> dict[str, float]:
        """Return ``{"timing/<name>": seconds}`` in the order of first use, and start again from nothing."""
        taken = {f"timing/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds, self._begins = {}, {}
        return taken
