"""Settings every test shares, and the rule that CI skips no comparison with a peer."""

import os
from collections.abc import Generator

import pytest

# Before anything imports torch or transformers: one thread per process, and no network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Ranks are forked from the test process, which a CUDA context would not survive.
os.environ.setdefault("MINDLLM_DEVICE", "cpu")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

IN_CI = bool(os.environ.get("CI"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, turn the skip of a test marked ``peer`` into a failure."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if IN_CI and skipped and item.get_closest_marker("peer"):
        report.outcome = "failed"
        report.longrepr = f"a peer test may not be skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, refuse a module that skips itself as a whole: its marks were never read, so it may hold peer tests."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"a test module may not skip itself in CI: {report.longrepr}"
    return report
