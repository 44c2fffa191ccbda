"""The one exception type for mistakes a user can fix, and the wording they share."""

import errno
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path


class UserError(Exception):
    """A mistake of the user's, in one sentence that names where it is, what was found and what is allowed.

    The three entry scripts print it as ``error: <sentence>`` without a traceback and exit with status 2.
    """


class RowError(UserError):
    """A row that cannot become a sample: an error, or under --on-bad-row skip left out and counted by `reason`."""

    reason = "bad_row"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.reason


class WorkerError(RuntimeError):
    """A worker process raised, died or did not answer; the message holds its own traceback or what is left of it."""


@contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Let an OSError of the block name ``path`` where it names no file, as that of a write on a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def describe_os_error(error: OSError) -> str:
    """One sentence on what the operating system refused: the file and the reason."""
    # Of two files, the second is the target: a copy to a full disk names both.
    name = error.filename2 if error.filename2 is not None else error.filename
    reason = error.strerror or str(error)
    if name is None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason, name = f"{reason} ({frame.filename}, line {frame.lineno})", type(error).__name__
    elif isinstance(name, bytes):
        name = os.fsdecode(name)
    remedy = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "; free some space and start the same command again"
    elif error.errno == errno.EFBIG:
        remedy = "; the file system or `ulimit -f` allows no larger files"
    return f"{name}: {reason}{remedy}"


def not_yaml(path: str | Path, error: Exception) -> str:
    """Return one sentence that says where a file, or one that it names, is not YAML.

    Args:
        path: of the file.
        error: a ``yaml.YAMLError``, or the UnicodeDecodeError of a file that is no UTF-8 text.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"{path} or a file it names is not YAML: it is not UTF-8 text ({error.reason})"
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{path} or a file it names is not YAML: {in_one_line(error)}"
    name = path if mark.name.startswith("<") else mark.name  # "<unicode string>" where a text was parsed
    return f"{name}, line {mark.line + 1}, column {mark.column + 1}: not YAML: {error.problem}"  # type: ignore[attr-defined]


def in_one_line(error: BaseException, limit: int = 300) -> str:
    """Return what ``error`` says in one line of at most ``limit`` characters, or what it is where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]} ..."


def known_answer(name: str, answers: Mapping[str, str]) -> str | None:
    """Return the answer for ``name``: that of the first pattern that fits it; None when none does.

    Args:
        name: a key or a flag, however it is written.
        answers: patterns of names, with spaces between and as of ``fnmatch``, to the answer.
    """
    plain = _plain(name)
    fits = (answer for patterns, answer in answers.items() if any(fnmatchcase(plain, one) for one in patterns.split()))
    return next(fits, None)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the allowed names that ``name`` may stand for, or ``""`` for none."""
    near = " or ".join(f"'{close}'" for close in near_names(name, allowed))
    return f"; did you mean {near}?" if near else ""


def near_names(name: str, allowed: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to ``limit`` allowed names that ``name`` is a misspelling of, or else an abbreviation.

    See ``misspelled``. An abbreviation shortens words (``seq_len``) or leaves some out
    (``batch_size``). Case, hyphens and underscores do not count.
    """
    others = sorted(set(allowed))
    meant = misspelled(name, others)
    if meant:
        return meant[:limit]
    plain = _plain(name)
    words, split = plain.split("_"), {other: _plain(other).split("_") for other in others}
    shortened = [other for other in others if _same_words(words, split[other])]
    longer = [other for other in others if len(plain) > 2 and set(words) < set(split[other])]
    return sorted(shortened or longer, key=len)[:limit]


def misspelled(name: str, allowed: Iterable[str]) -> list[str]:
    """Return the allowed names that ``name`` comes closest to, with at most one wrong letter in five (or of three)."""
    plain = _plain(name)
    edits = {other: _edits(plain, _plain(other)) for other in sorted(set(allowed))}
    fewest = min(edits.values(), default=0)
    return [other for other, number in edits.items() if number == fewest and number <= _tolerated(plain, _plain(other))]


def _tolerated(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    return max(shorter // 5, 1 if shorter > 2 else 0)


def _same_words(words: list[str], others: list[str]) -> bool:
    """Whether each word is the other's beginning, of three letters or more, or the other way round."""
    return len(words) == len(others) and all(
        one == other or (min(len(one), len(other)) > 2 and (one.startswith(other) or other.startswith(one)))
        for one, other in zip(words, others, strict=True)
    )


def _plain(name: str) -> str:
    """Words with underscores between, whether they were written with hyphens, with underscores or in camel case."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[-_ ]+", "_", words).strip("_").lower()


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
