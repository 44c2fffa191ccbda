"""The few lines and the ``report.json`` that a run ends with."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import mean  # exact: fmean overflows where the sum is no float
from typing import Any

_ENDS = 10  # iterations averaged at either end of the run


def outcome_of(error: type[BaseException] | None) -> str:
    """Return the word for the end of a run that ``error`` ended, None if nothing did."""
    if error is None:
        return "finished"
    return "interrupted" if issubclass(error, KeyboardInterrupt) else "failed"


def build_report(
    outcome: str,
    seconds: float,
    records: Sequence[Mapping[str, Any]],
    headline: Mapping[str, str],
    resumes_after: int | None = None,
) -> dict[str, Any]:
    """Summarise the iterations of a run, those of earlier processes included.

    Args:
        outcome: one word, such as "finished", "failed" or "interrupted".
        seconds: wall-clock time of this process.
        records: one mapping per iteration, with its "iteration".
        headline: label -> metric name; each metric that occurs is averaged over the first and the last iterations.
        resumes_after: of a run that did not finish: iteration of its last checkpoint, 0 if there is none.
    """
    report: dict[str, Any] = {"outcome": outcome, "seconds_this_process": round(seconds, 3), "iterations": len(records)}
    if records:
        report["last_iteration"] = records[-1]["iteration"]
    for label, name in headline.items():
        values = [float(record[name]) for record in records if record.get(name) is not None]
        if values:
            ends = max(1, min(_ENDS, len(values) // 2))
            means = {"first": mean(values[:ends]), "last": mean(values[-ends:])}
            report[label] = {"metric": name, **means, "over": ends, "values": len(values)}
    if resumes_after is not None:
        report["resumes_after"] = resumes_after
    return report


def render_report(report: Mapping[str, Any], run_dir: object) -> str:
    """Return the report as a few lines of text."""
    took = timedelta(seconds=round(report["seconds_this_process"]))
    lines = [f"{report['outcome']}: {_count(report['iterations'])} in all, this process took {took}"]
    lines += [f"  {label}: {_ends(values)}" for label, values in report.items() if isinstance(values, dict)]
    if "peak_memory_gib" in report:
        lines.append(f"  peak memory of a rank: {report['peak_memory_gib']:.1f} GiB, in {report['peak_memory_in']}")
    lines.append(f"  run directory: {run_dir}")
    if "resumes_after" in report:
        after = report["resumes_after"]
        where = (
            f"resumes after iteration {after}" if after else "starts from the beginning: no checkpoint was saved yet"
        )
        lines.append(f"  the same command {where}")
    return "\n".join(lines)


def _ends(values: Mapping[str, Any]) -> str:
    if values["values"] == 1:
        return f"{values['last']:.4g}"
    which = f"means of the first and last {values['over']}" if values["over"] > 1 else "first and last"
    return f"{values['first']:.4g} -> {values['last']:.4g} ({which})"


def _count(iterations: int) -> str:
    return f"{iterations} iteration" + ("" if iterations == 1 else "s")
