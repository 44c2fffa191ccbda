"""The one exception type for mistakes a user can fix, and the wording they share."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's, in one sentence that names where it is, what was found and what is allowed.

    The three entry scripts print it as ``error: <sentence>`` without a traceback and exit with status 2.
    """


class WorkerError(RuntimeError):
    """A worker process raised, died or did not answer; the message holds its own traceback or what is left of it."""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest allowed name, or ``""`` when none is close."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
