"""The built-in rewards that look at the form of a completion: ``format``, ``strict_format`` and ``step``."""

import re
from typing import Any

from mindllm.rewards.registry import reward

_THINK_THEN_ANSWER = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
_TAGS_ON_OWN_LINES = re.compile(r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>", re.DOTALL)
_STEP = re.compile(r"Step \d+:|^\d+\.|\n[-*] |\b(?:First|Second|Next|Finally),", re.MULTILINE)
_ENOUGH_STEPS = 3


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


@reward("strict_format")
def strict_format_reward(completions: list[str], **columns: Any) -> list[float]:
    """Return 1.0 for each completion that has the form of ``format`` with every tag on a line of its own, else 0.0."""
    texts = map(_stripped, completions)
    return [float(_has_default_form(text) and _TAGS_ON_OWN_LINES.fullmatch(text) is not None) for text in texts]


@reward("step")
def step_reward(completions: list[str], **columns: Any) -> list[float]:
    """Return a third for each step that a completion marks, at most 1.0.

    Marks are ``Step 1:``, a line that begins with ``1.``, ``- `` or ``* ``, and ``First,``, ``Second,``, ``Next,``,
    ``Finally,``.
    """
    return [min(1.0, len(_STEP.findall(_stripped(text))) / _ENOUGH_STEPS) for text in completions]


def _stripped(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a completion must be a string, found {type(text).__name__}")
    return text.strip()


def _has_default_form(text: str) -> bool:
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return False
    return _THINK_THEN_ANSWER.fullmatch(text) is not None
