"""The built-in reward ``format``."""

import re
from typing import Any

from mindllm.rewards.registry import reward

_THINK_THEN_ANSWER = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)


@reward("format")
def format_reward(completions: list[str], pattern: str | None = None, **columns: Any) -> list[float]:
    """Return 1.0 for each completion of the right form, else 0.0.

    The form is ``<think>...</think>``, white space, ``<answer>...</answer>`` with exactly one answer block, or, when
    ``pattern`` is given, that regular expression (``.`` also matches a line break). White space around the completion
    is ignored. Raises TypeError when a completion is not a string.
    """
    if pattern is not None:
        own = re.compile(pattern, re.DOTALL)
        return [float(own.fullmatch(_stripped(text)) is not None) for text in completions]
    return [float(_has_default_form(_stripped(text))) for text in completions]


def _stripped(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a completion must be a string, found {type(text).__name__}")
    return text.strip()


def _has_default_form(text: str) -> bool:
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return False
    return _THINK_THEN_ANSWER.fullmatch(text) is not None
