"""What a run directory remembers of earlier processes: that one has it open, and what it was configured to do."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from mindllm.errors import UserError

CONFIG_NAME = "config.yaml"
_LOCK_NAME = ".lock"


def lock(run_dir: Path) -> FileLock:
    """Take ``run_dir`` for this process, until the lock is released or the process ends.

    Raises:
        UserError: another process has it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    held = FileLock(run_dir / _LOCK_NAME)
    try:
        held.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"training.run_dir: another process is running in {run_dir}; wait for its end or write another run_dir"
        ) from None
    return held


def changed_keys(run_dir: Path, resolved: str) -> list[str]:
    """Return a line for each key whose value in the configuration ``resolved`` is not that of the earlier process.

    ``training.run_dir`` does not count: a run may be moved. Keys that are missing show as ``unset``.
    """
    path = run_dir / CONFIG_NAME
    if not path.is_file():
        return []
    before, now = (dict(_flat(yaml.safe_load(text) or {})) for text in (path.read_text(encoding="utf-8"), resolved))
    lines = []
    for key in sorted((before.keys() | now.keys()) - {"training.run_dir"}):
        old, new = before.get(key, "unset"), now.get(key, "unset")
        if old != new:
            unread = " (not read: the weights are those of the run's checkpoint)" if _is_trained_load(key) else ""
            lines.append(f"changed since the run was last started: {key}: {old} -> {new}{unread}")
    return lines


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_trained_load(key: str) -> bool:
    return key in ("actor_rollout_ref.actor_rollout.load", "critic.load")
