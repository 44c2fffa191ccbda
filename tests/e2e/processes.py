"""Which processes a command started, and whether they are gone; by /proc alone."""

import time
from pathlib import Path

Identity = tuple[int, str]
"""Process id and start time: an id alone may be given to another process."""


def _stat(pid: int) -> list[str] | None:
    """State, parent and further fields of a process, None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(pid: int) -> set[Identity]:
    """Children of ``pid``, their children and so on."""
    children: dict[int, list[Identity]] = {}
    for entry in Path("/proc").iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdecimal() else None
        if stat is not None:
            children.setdefault(int(stat[1]), []).append((int(entry.name), stat[19]))
    found: set[Identity] = set()
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            found.add(child)
            pending.append(child[0])
    return found


def command_line(pid: int) -> str:
    """What a process calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def still_alive(processes: set[Identity]) -> dict[int, str]:
    """Those of ``processes`` that run, with their command lines; the dead that nobody waited for do not count."""
    alive = {}
    for pid, started in processes:
        stat = _stat(pid)
        if stat is not None and stat[19] == started and stat[0] != "Z":
            alive[pid] = command_line(pid)
    return alive


def assert_gone(processes: set[Identity], timeout_s: float = 60, apart_from: tuple[str, ...] = ()) -> None:
    """Wait until all have ended, apart from those whose command lines begin with ``apart_from``."""
    deadline = time.monotonic() + timeout_s
    while alive := {pid: name for pid, name in still_alive(processes).items() if not name.startswith(apart_from)}:
        assert time.monotonic() < deadline, f"still running after {timeout_s:g} s: {alive}"
        time.sleep(0.1)
