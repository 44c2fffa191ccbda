"""Peak memory of a block, not of the whole process."""

import mmap
import time

from mindllm.device import PeakMemory

_SIZE = 256 << 20


def _hold_until_seen(peak: PeakMemory, above: int) -> None:
    """Have ``_SIZE`` bytes until a sample has seen them."""
    held = mmap.mmap(-1, _SIZE)  # which the system takes back at once, whatever the C library does with its heap
    for page in range(0, _SIZE, mmap.PAGESIZE):
        held[page] = 1
    deadline = time.monotonic() + 60
    while peak.bytes < above and time.monotonic() < deadline:
        time.sleep(0.01)
    held.close()


def test_a_peak_within_the_block_is_seen_and_one_before_it_is_not():
    with PeakMemory() as base:
        pass
    assert base.bytes > 50 << 20  # the interpreter with torch
    for _ in range(2):  # the second time the kernel's peak of the process does not rise any more
        with PeakMemory() as high:
            _hold_until_seen(high, base.bytes + _SIZE // 2)
        assert base.bytes + _SIZE // 2 < high.bytes < base.bytes + 2 * _SIZE
    with PeakMemory() as low:
        pass
    assert low.bytes < base.bytes + _SIZE // 2
