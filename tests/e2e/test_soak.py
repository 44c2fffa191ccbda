"""Memory of a long run."""

import os
from pathlib import Path

import pytest

from tests.e2e.runs import ACTOR, SHORT, finish, lines_logged, start, wait_until

WARM_UP, LAST = 10, 40
MAX_GROWTH_BYTES = 16 * 2**20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_thirty_iterations_leave_nothing_behind_in_memory(workspace, tmp_path):
    run_dir = tmp_path / "run"
    overrides = [*SHORT, f"training.train_iters={LAST + 5}", f"{ACTOR}.ppo_epochs=2", "training.save_interval=5"]
    process = start(workspace.arguments("grpo", run_dir, *overrides))
    wait_until(process, lambda: lines_logged(run_dir) >= WARM_UP)
    before = resident_bytes(process.pid)
    wait_until(process, lambda: lines_logged(run_dir) >= LAST)
    growth = resident_bytes(process.pid) - before
    assert finish(process).status == 0
    assert growth < MAX_GROWTH_BYTES, f"{growth / 2**20:.1f} MiB in {LAST - WARM_UP} iterations"
    print(f"growth {growth / 2**20:.1f} MiB")
