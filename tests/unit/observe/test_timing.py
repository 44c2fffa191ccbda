import time

import pytest

from mindllm.observe import Timer, Timings


def test_a_timer_measures_seconds():
    with Timer() as timer:
        time.sleep(0.02)
    assert 0.02 <= timer.seconds < 0.5


def test_timings_add_up_by_name_and_start_again_after_being_taken():
    timings = Timings()
    with timings.measure("rollout"):
        time.sleep(0.01)
    with timings.measure("update"):
        pass
    with timings.measure("rollout"):
        time.sleep(0.01)
    taken = timings.take()
    assert list(taken) == ["timing/rollout", "timing/update"]
    assert 0.02 <= taken["timing/rollout"] < 0.5
    assert timings.take() == {}


def test_time_is_kept_when_the_block_raises():
    timings = Timings()
    with pytest.raises(RuntimeError), timings.measure("rollout"):
        raise RuntimeError
    assert "timing/rollout" in timings.take()
