"""The few lines and the ``report.json`` that a run ends with."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import fmean
from typing import Any

_ENDS = 10  # iterations averaged at either end of the run


def build_report(
    outcome: str, seconds: float, records: Sequence[Mapping[str, Any]], headline: Mapping[str, str]
) -> dict[str, Any]:
    """Summarise the iterations of a run, those of earlier processes included.

    Args:
        outcome: one word, such as "finished" or "failed".
        seconds: wall-clock time of this process.
        records: one mapping per iteration, with its "iteration".
        headline: label -> metric name; each metric that occurs is averaged over the first and the last iterations.
    """
    report: dict[str, Any] = {"outcome": outcome, "seconds_this_process": round(seconds, 3), "iterations": len(records)}
    if records:
        report["last_iteration"] = records[-1]["iteration"]
    for label, name in headline.items():
        values = [float(record[name]) for record in records if record.get(name) is not None]
        if values:
            ends = max(1, min(_ENDS, len(values) // 2))
            report[label] = {"metric": name, "first": fmean(values[:ends]), "last": fmean(values[-ends:]), "over": ends}
    return report


def render_report(report: Mapping[str, Any], run_dir: object) -> str:
    """Return the report as a few lines of text."""
    took = timedelta(seconds=round(report["seconds_this_process"]))
    lines = [f"{report['outcome']}: {report['iterations']} iterations in all, this process took {took}"]
    for label, values in report.items():
        if isinstance(values, dict):
            lines.append(
                f"  {label}: {values['first']:.4g} -> {values['last']:.4g} (means of {values['over']} iterations)"
            )
    if "peak_memory_gib" in report:
        lines.append(f"  peak memory of a rank: {report['peak_memory_gib']:.1f} GiB, in {report['peak_memory_in']}")
    lines.append(f"  run directory: {run_dir}")
    return "\n".join(lines)
