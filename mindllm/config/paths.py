"""Types of keys that hold a path: what was written becomes absolute where the configuration is built, on the driver.

Ranks may run on a cluster whose processes were started in another directory, by another user, with another
environment; they, the preflight checks and the driver must all mean the same files.
"""

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from mindllm.paths import expanded_path


def absolute_path(text: str) -> str:
    """Return ``text`` expanded and from the root; symbolic links stay as written, since nodes may differ in them.

    Raises:
        ValueError: see ``expanded_path``.
    """
    return os.path.abspath(expanded_path(text))


def _one_prefix(value: Any) -> Any:
    """Read ``weight,prefix`` and ``weight prefix`` as the prefix that it names; refuse a blend of several."""
    parts = _parts(value)
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2 and _is_number(parts[0]):
        return parts[1]
    raise ValueError(
        f"{value!r} is not one prefix; a blend is not available, so give all the files to one preprocess_data.py run"
    )


def _parts(value: Any) -> list[str]:
    """Items of a list, or of text with commas; with spaces only where weights show that they separate."""
    if isinstance(value, list):
        return [str(item).strip() for item in value]
    text = str(value)
    words = text.split()
    if len(words) > 1 and len(words) % 2 == 0 and all(map(_is_number, words[::2])):
        return words
    return [part.strip() for part in text.split(",")]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


LocalPath = Annotated[str, Field(min_length=1), AfterValidator(absolute_path)]
DataPrefix = Annotated[LocalPath, BeforeValidator(_one_prefix)]
