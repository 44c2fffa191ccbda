import pytest

from mindllm.observe import Timer, Timings, timing


class Clock:
    """Stands in for the module ``time``; tests move it."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_a_timer_measures_seconds(clock: Clock):
    with Timer() as timer:
        clock.now += 2.5
    assert timer.seconds == 2.5


def test_timings_add_up_by_name_and_start_again_after_being_taken(clock: Clock):
    timings = Timings()
    for name, seconds in (("rollout", 2.0), ("update", 0.0), ("rollout", 3.0)):
        with timings.measure(name):
            clock.now += seconds
    assert timings.take() == {"timing/rollout": 5.0, "timing/update": 0.0}
    assert timings.take() == {}


def test_time_is_kept_when_the_block_raises(clock: Clock):
    timings = Timings()
    with pytest.raises(RuntimeError), timings.measure("rollout"):
        clock.now += 4.0
        raise RuntimeError
    assert timings.take() == {"timing/rollout": 4.0}
