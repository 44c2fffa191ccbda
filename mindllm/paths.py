"""Paths as users write them: with ``~``, with environment variables, relative to where the program was started."""

import os
import re

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def expanded_path(text: str) -> str:
    """Return ``text`` with ``~`` and ``$VARIABLES`` expanded, unless it exists as written.

    Raises:
        ValueError: it names an environment variable that is not set, or the home of an unknown user.
    """
    if os.path.lexists(text):  # a file's name may hold any of these characters
        return text
    for name in (braced or plain for braced, plain in _VARIABLE.findall(text)):
        if name not in os.environ:
            raise ValueError(f"{text!r} names the environment variable {name}, which is not set")
    expanded = os.path.expanduser(os.path.expandvars(text))
    if text.startswith("~") and expanded.startswith("~"):
        raise ValueError(f"{text!r} names the home directory of a user that this machine does not know")
    return expanded
