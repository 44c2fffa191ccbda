"""What processes started here have in common."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def die_with_parent_thread() -> None:
    """Have the kernel kill this process when the thread that started it ends; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
