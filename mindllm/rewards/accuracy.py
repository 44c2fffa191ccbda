"""The built-in reward ``accuracy``: is the answer of a completion the one of ``solution`` (or ``labels``)?"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from mindllm.rewards.answers import has_words, item_lists, readings, tidy, without_fonts
from mindllm.rewards.equality import is_same_answer, match_all
from mindllm.rewards.quantities import known_unit
from mindllm.rewards.registry import reward

_INTEGER = re.compile(r"-?\d{1,18}")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$\\.,;]+)")
_BETWEEN_BOXES = re.compile(
    r"[\s$.]*(?:(?:,|;|\\text\s*\{\s*(?:and|or)\s*\}|\band\b|\bor\b)[\s$]*)+(?:[A-Za-z]\s*=\s*)?"
)
_MARKED = re.compile(r"####[ \t]*(\S.*)")
# What stands before the final answer of a sentence; after the second kind it must be mathematics.
_ANSWER_IS = re.compile(r"\banswer(?:\s+(?:is|should be|would be)\b|\**\s*[:=])[:*\s]*(?=\S)", re.I)
_THEREFORE = re.compile(r"(?:\b(?:so|thus|hence|therefore|is|it's|are|equals|be|get)\b|[=:≈])[,:\s]*(?=\S)", re.I)
_IS_WORDS = re.compile(r".*\b(?:is|are|was|were|it's)[:\s]+(\S.*)", re.I)
_SENTENCE_START = re.compile(r"(?<=[.!?])\s+")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_FORMULA = r"(?:\$\$[^$]+\$\$|(?<!\\)\$[^$]+\$|\\\((?:(?!\\[()]).)+\\\)|\\\[(?:(?!\\[\[\]]).)+\\\])"
_FORMULAS = re.compile(rf"{_FORMULA}(?:\s*,?\s*(?:and|or|,)\s*{_FORMULA})*", re.DOTALL)
_NUMBER = re.compile(r"(?<![^\s=(*:$])\\?\$?-?\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?(?:\s*\\?%)?")
_NEXT_WORD = re.compile(r"\s*([A-Za-z°]+)(?!\w)")
_WORD = re.compile(r"\w+")

_FEWEST_WORDS = 3  # of a sentence, such as ``It is 4``
_FEWEST_WORDS_AROUND_A_NUMBER = 4  # ``World War 2`` is no answer 2, ``He has 2 apples`` is
_LONGEST = 1000  # characters of a final answer
_MAX_CONCLUSIONS = 20


def _import_math_verify() -> None:
    import math_verify  # noqa: F401  (about half a second, most of it sympy)

    # It warns that its own time limits are off; the runner has one that also holds for code that catches signals.
    logging.getLogger("math_verify").setLevel(logging.ERROR)


@reward("accuracy", prepare=_import_math_verify, score_at_timeout=0.0, stand_ins={"solution": "labels"})
def accuracy_reward(
    completions: list[str], solution: list[Any], solution_list: Literal["any", "all"] = "any", **columns: Any
) -> list[float | None]:
    """Return 1.0 where the answer equals the solution, else 0.0, and None where the solution is None.

    The answer is in the last ``<answer>...</answer>`` block, or in the whole text without one, and in it in the last
    ``\\boxed{...}``; the same holds for the solution. A block that is opened and never closed is no answer. How answers
    are compared is described in ``docs/rewards.md``.

    Args:
        completions: texts of the model.
        solution: for each, the right answer: a text or a number; or a list of them, or such a list as JSON text.
        solution_list: what a list holds: answers each of which is right ("any"), or the parts of one answer, all of
            which must be given and nothing else, in any order ("all").
        columns: not used.

    Raises:
        TypeError: a solution is neither text, nor a number, nor a list of these.
    """
    return [
        None if gold is None else float(_is_right(completion, _golds(gold), solution_list))
        for completion, gold in zip(completions, solution, strict=True)
    ]


def _golds(solution: Any) -> list[str]:
    """Return what a solution lists, or the solution alone."""
    if hasattr(solution, "tolist"):  # of numpy
        solution = solution.tolist()
    if isinstance(solution, str) and solution.lstrip().startswith('["'):
        try:
            solution = json.loads(solution)
        except ValueError:
            pass
    golds = list(solution) if isinstance(solution, (list, tuple, set)) else [solution]
    for gold in golds:
        if isinstance(gold, (Mapping, list, tuple, set)):
            raise TypeError(f"a solution must be a text, a number or a list of these, found {solution!r:.80}")
    return [str(gold) for gold in golds if gold is not None]


def _is_right(completion: str, golds: Sequence[str], solution_list: str) -> bool:
    block = _answer_block(completion)
    if not block:
        return False
    if len(golds) == 1 and _INTEGER.fullmatch(block) and _INTEGER.fullmatch(golds[0]):  # by far the most frequent case
        return int(block) == int(golds[0])
    answers = _answers(block, "</answer>" in completion)
    if len(golds) > 1 and solution_list == "all":
        return _has_all(answers, golds)
    return any(_is_same(answer, one) for gold in golds for one in _gold_answers(gold) for answer in answers)


def _is_same(answer: str, gold: str) -> bool:
    """Compare two answers; what is too long to be read, word for word."""
    if max(len(answer), len(gold)) > _LONGEST:
        return answer.split() == gold.split()
    try:
        return is_same_answer(answer, gold)
    except Exception:  # algebra raises whatever it likes on what models write; nothing shows that the two are the same
        return False


def _has_all(answers: Sequence[str], golds: Sequence[str]) -> bool:
    """Tell whether an answer is a list with one item for each gold, in any order."""
    parts = [(_gold_answers(gold) or ("",))[0] for gold in golds]
    lists = (items for answer in answers if len(answer) <= _LONGEST for items in item_lists(answer))
    return any(match_all(items, parts, _is_same) for items in lists)


def _answer_block(text: str) -> str | None:
    """Return the inside of the last closed answer block, the whole text without any, None if one is left open."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if start >= 0:
        return text[start + len("<answer>") : end].strip()
    return None if "<answer>" in text else text.strip()


@lru_cache(maxsize=1024)
def _gold_answers(gold: str) -> tuple[str, ...]:
    """Return what a solution may mean: all of it, or what it says at its end. All samples of a prompt share it."""
    text = _answer_block(gold)
    if text is None:
        return ()
    marked = _marked(text)
    if marked is not None:
        return tuple(marked)
    stated = _stated(text)
    if stated is not None:
        return text, stated
    if not _is_sentence(text):
        return (text,)
    formula = _last_formula(text)
    at_end = formula is not None and len(_WORD.findall(text[text.rfind(formula) + len(formula) :])) < 2
    concluded = _concluded(text)
    return (text, *[one for one in (formula if at_end else None, concluded) if one])


def _answers(block: str, between_tags: bool) -> list[str]:
    """Return what a completion may mean: all of it, or the answer in its sentences."""
    marked = _marked(block)
    if marked is not None:
        return marked
    stated = _stated(block)
    if stated is not None:
        return [block, stated, *_conclusions(stated, alone=True)]
    return [block, *_conclusions(block, alone=between_tags)]


def _marked(text: str) -> list[str] | None:
    """Return what is marked as the answer, by a box or by ``####``; [] if the box is left open, None without mark."""
    if _BOX.search(text):
        boxed = _last_boxes(text)
        if boxed is None:
            return []
        stated = _stated(without_fonts(boxed))
        return [boxed] if stated is None else [boxed, stated]
    found = _BARE_BOX.findall(text) or _MARKED.findall(text)
    return [found[-1].strip()] if found else None


def _last_boxes(text: str) -> str | None:
    """Return the inside of the last box, with boxes in front of it that a comma, "and" or "or" joins to it."""
    inside: list[str] = []
    end = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        closing = _closing_brace(text, box.end())
        if closing is None and not inside:
            return None
        if inside and (closing is None or _BETWEEN_BOXES.fullmatch(text, closing + 1, end) is None):
            break
        inside.insert(0, text[box.end() : closing].strip())
        end = box.start()
    return ", ".join(dict.fromkeys(inside))


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def _stated(text: str) -> str | None:
    """Return what follows the last "the answer is", up to the end of the sentence."""
    found = list(_ANSWER_IS.finditer(text))
    return _sentence(text, found[-1].end()).removesuffix("**") if found else None


def _sentence(text: str, start: int) -> str:
    """Return the text from ``start`` to the end of its sentence or line."""
    line = text[start:].split("\n", maxsplit=1)[0]
    return _SENTENCE_END.split(line, maxsplit=1)[0].strip()


def _conclusions(text: str, alone: bool) -> list[str]:
    """Return what sentences end with: a formula, what follows "so" or "=", or the last number; words after "is"."""
    if not _is_sentence(text):
        return []
    found = [_last_formula(text) or _concluded(text) or _last_number(text, alone), _last_words(text)]
    return [one for one in found if one is not None]


def _is_sentence(text: str) -> bool:
    return _count_words(text) >= _FEWEST_WORDS and not _is_mathematics(text)


def _count_words(text: str) -> int:
    return sum(_WORD.search(word) is not None for word in without_fonts(text).split())


def _is_mathematics(text: str) -> bool:
    return len(text) <= _LONGEST and not any(map(has_words, readings(tidy(text))))


def _last_formula(text: str) -> str | None:
    found = _FORMULAS.findall(text)
    return found[-1] if found else None


def _concluded(text: str) -> str | None:
    """Return the mathematics that follows the last "so", "is" or "="."""
    for found in list(_THEREFORE.finditer(text))[: -_MAX_CONCLUSIONS - 1 : -1]:
        if _is_mathematics(sentence := _sentence(text, found.end())):
            return sentence
    return None


def _last_words(text: str) -> str | None:
    """Return the words that follow "is" in the last sentence; mathematics is left to the others."""
    sentence = _SENTENCE_START.split(text.strip().splitlines()[-1])[-1]
    found = _IS_WORDS.fullmatch(sentence)
    return found[1] if found is not None and not _is_mathematics(found[1]) else None


def _last_number(text: str, alone: bool) -> str | None:
    """Return the last number, with the unit that follows it; with ``alone`` only where there is no other."""
    found = list(_NUMBER.finditer(text))
    if not found or (alone and len(found) > 1) or _count_words(text) < _FEWEST_WORDS_AROUND_A_NUMBER:
        return None
    word = _NEXT_WORD.match(text, found[-1].end())
    return found[-1][0] + (f" {word[1]}" if word is not None and known_unit(word[1]) else "")
