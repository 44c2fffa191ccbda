"""The one exception type for mistakes a user can fix, and the wording they share."""

import re
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's, in one sentence that names where it is, what was found and what is allowed.

    The three entry scripts print it as ``error: <sentence>`` without a traceback and exit with status 2.
    """


class WorkerError(RuntimeError):
    """A worker process raised, died or did not answer; the message holds its own traceback or what is left of it."""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the allowed names that ``name`` may stand for, or ``""`` for none."""
    near = " or ".join(f"'{close}'" for close in near_names(name, allowed))
    return f"; did you mean {near}?" if near else ""


def near_names(name: str, allowed: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to ``limit`` allowed names that ``name`` is a misspelling of, or else whose words it leaves out.

    A misspelling has at most one wrong letter in four. Case, hyphens and underscores do not count.
    """
    plain = _plain(name)
    words = set(plain.split("_"))
    distances = {other: _edits(plain, _plain(other)) for other in sorted(set(allowed))}
    tolerated = [distance for other, distance in distances.items() if distance <= min(len(plain), len(other)) // 4]
    short = [distance for other, distance in distances.items() if distance == 1 and len(plain) > 2 and len(other) > 2]
    if tolerated or short:
        best = min([*tolerated, *short])
        return [other for other, distance in distances.items() if distance == best][:limit]
    longer = [other for other in distances if len(plain) > 2 and words < set(_plain(other).split("_"))]
    return sorted(longer, key=len)[:limit]


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]+", "_", name.strip("-_ ").lower())


def _edits(one: str, other: str) -> int:
    """Letters to insert, delete, replace or swap with the next one until the words are equal (optimal alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]
