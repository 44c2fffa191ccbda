"""Names of configuration files."""

import difflib
from pathlib import Path


def config_names(directory: Path) -> list[str]:
    """Return the names (without ``.yaml``) of the files in ``directory``, sorted; none if it does not exist."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def near_names(name: str, available: list[str]) -> str:
    """Return ``"did you mean ..."`` or, when nothing is close, ``"available: ..."``."""
    close = difflib.get_close_matches(name, available, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"available: {', '.join(available) or 'none'}"
