"""Peak memory of this process over a piece of work."""

import os
import resource
import sys
import threading
from types import TracebackType
from typing import Self

from mindllm.device.backend import has_accelerator

import torch

_SAMPLE_INTERVAL_S = 0.05
_KERNEL_ERROR = 0.01  # it counts on each CPU and adds up later, so its peak may still rise a little afterwards


class PeakMemory:
    """Context that measures the peak memory of its block: ``with PeakMemory() as peak: ...`` then ``peak.bytes``.

    On CUDA what torch had allocated (``torch.cuda.max_memory_allocated``), else the resident set of the process. The
    kernel keeps one peak for the whole life of a process, and resetting it would mislead whoever watches the process
    from outside; so a thread samples the resident set, and the kernel's peak is taken where the block raised it.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> Self:
        if has_accelerator():
            torch.cuda.reset_peak_memory_stats()
            return self
        self._before, self._done = _kernel_peak_bytes(), threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="memory sampler", daemon=True)
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if has_accelerator():
            self.bytes = torch.cuda.max_memory_allocated()
            return
        self._done.set()
        self._sampler.join()
        after = _kernel_peak_bytes()
        raised = after > (1 + _KERNEL_ERROR) * self._before
        self.bytes = after if raised else max(self.bytes, _resident_bytes())

    def _sample(self) -> None:
        while True:
            self.bytes = max(self.bytes, _resident_bytes())
            if self._done.wait(_SAMPLE_INTERVAL_S):
                return


def total_memory_bytes() -> int:
    """Memory of a device of this machine: of its first GPU, or of the host."""
    if has_accelerator():
        return torch.cuda.get_device_properties(0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kernel_peak_bytes() -> int:
    """Largest resident set that this process has had so far."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def _resident_bytes() -> int:
    """Resident set of this process; 0 where there is no ``/proc``."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
