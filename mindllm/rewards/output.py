"""What reward processes print: shown up to a limit, and its end kept for messages."""

import os
import threading
from codecs import getincrementaldecoder
from contextlib import suppress

_SHOWN_BYTES = 256 * 1024  # of all processes that follow each other
_KEPT_BYTES = 2048
_READ_BYTES = 64 * 1024
_FINISH_S = 1.0  # for output that is still in the pipe when its process has ended


class Output:
    """Reads a pipe in a thread of its own, so that the process never waits for somebody to read."""

    def __init__(self, fd: int, shown: int) -> None:
        """Begin to read.

        Args:
            fd: the reading end, which stays the caller's.
            shown: bytes already shown of earlier processes; they count towards the limit.
        """
        self.shown = shown
        self._fd, self._kept = os.dup(fd), b""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last_lines(self) -> str:
        """Return what was printed last, to be put behind a sentence; nothing if nothing was."""
        text = self._kept.decode(errors="replace").strip()
        return f"; it printed last:\n{text}" if text else ""

    def finish(self) -> None:
        """Wait until all that a process which has ended printed is read."""
        self._thread.join(_FINISH_S)  # its own children may hold the pipe open

    def _read(self) -> None:
        try:
            while chunk := os.read(self._fd, _READ_BYTES):
                self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
                self._show(chunk)
        finally:
            os.close(self._fd)

    def _show(self, chunk: bytes) -> None:
        before, self.shown = self.shown, self.shown + len(chunk)
        text = self._decoder.decode(chunk[: max(0, _SHOWN_BYTES - before)])
        if before <= _SHOWN_BYTES < self.shown:
            text += f"\n(a reward process has printed more than {_SHOWN_BYTES // 1024} KiB; the rest is not shown)\n"
        with suppress(OSError, ValueError):  # whatever became of the run's output, the pipe is read on
            print(text, end="", flush=True)
