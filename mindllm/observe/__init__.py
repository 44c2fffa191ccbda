"""What a run shows: metrics, trackers, sample dumps, the progress line and the final report."""

from mindllm.observe.report import outcome_of
from mindllm.observe.runlog import RunLog
from mindllm.observe.timing import Timer, Timings
from mindllm.observe.trackers import TRACKERS, WandbSettings

__all__ = ["TRACKERS", "RunLog", "Timer", "Timings", "WandbSettings", "outcome_of"]
