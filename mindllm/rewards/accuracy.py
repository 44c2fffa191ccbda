"""The built-in reward ``accuracy``: is the answer of a completion the one of ``solution`` (or ``labels``)?"""

import logging
import re
from functools import lru_cache
from typing import Any

from mindllm.rewards.registry import reward

_INTEGER = re.compile(r"-?\d{1,18}")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_WITH_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+")
_PERCENT = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)\s*\\?%")


def _import_math_verify() -> None:
    import math_verify  # noqa: F401  (about half a second, most of it sympy)

    # It warns that its own time limits are off; the runner has one that also holds for code that catches signals.
    logging.getLogger("math_verify").setLevel(logging.ERROR)


@reward("accuracy", prepare=_import_math_verify, score_at_timeout=0.0, stand_ins={"solution": "labels"})
def accuracy_reward(completions: list[str], solution: list[Any], **columns: Any) -> list[float | None]:
    """Return 1.0 where the answer equals the solution, else 0.0, and None where the solution is None.

    The answer is the last ``<answer>...</answer>`` block, or the whole text without one, and in it the last
    ``\\boxed{...}``; the same holds for the solution. A block that is opened and never closed is no answer. In this
    order: equal texts are right; integers and lists of numbers are compared as such; mathematics is compared by
    math-verify (equal value or expression); a solution that is not mathematics, such as ``B``, asks for the exact text.
    """
    return [
        None if gold is None else float(_is_right(completion, str(gold)))
        for completion, gold in zip(completions, solution, strict=True)
    ]


def _is_right(completion: str, solution: str) -> bool:
    answer, gold = _answer_block(completion), _answer_block(solution)
    if answer is None or gold is None:
        return False
    short_answer, short_gold = _core(answer), _core(gold)
    if not short_answer or not short_gold:
        return False
    if short_answer == short_gold:
        return True
    if _INTEGER.fullmatch(short_answer) and _INTEGER.fullmatch(short_gold):
        return int(short_answer) == int(short_gold)
    # math-verify would compare only the last number of a list.
    if (numbers := _number_list(short_gold)) is not None:
        return _SEPARATOR.split(short_answer) == numbers
    if _number_list(short_answer) is not None:
        return False
    return _is_equal_mathematics(_parsable(answer, short_answer), _parsable(gold, short_gold))


def _answer_block(text: str) -> str | None:
    """Return the inside of the last closed answer block, the whole text without any, None if one is left open."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if start >= 0:
        return text[start + len("<answer>") : end]
    return None if "<answer>" in text else text


def _core(text: str) -> str:
    """Return the inside of the last box, or the text without one; white space is collapsed."""
    boxed = _last_boxed(text)
    return " ".join((text if boxed is None else boxed).split())


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def _number_list(text: str) -> list[str] | None:
    """Split ``1 2 3`` or ``1, 2, 3`` into its numbers; None for anything else, also for ``1,234`` and ``1,5``."""
    if _WITH_THOUSANDS.fullmatch(text) or _DECIMAL_COMMA.fullmatch(text):
        return None
    parts = _SEPARATOR.split(text)
    return parts if len(parts) > 1 and all(map(_NUMBER.fullmatch, parts)) else None


def _parsable(text: str, core: str) -> str:
    """Return what math-verify is to parse: the text, but a lone percentage without its box (there it fails on it)."""
    percent = _PERCENT.fullmatch(core)
    return f"{percent[1]}%" if percent else text


def _is_equal_mathematics(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    parsed_gold = _parse_gold(gold)
    if not parsed_gold:
        return False
    # No time limit of its own: it uses signals, which some code swallows; the runner kills this process instead.
    return bool(verify(parsed_gold, parse(answer, parsing_timeout=None), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _parse_gold(gold: str) -> Any:
    """Parse a solution; all samples of a prompt share it."""
    from math_verify import parse

    return parse(gold, parsing_timeout=None)
