"""Whether two final answers say the same."""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from mindllm.rewards.answers import (
    NUMBER,
    Answer,
    Choice,
    Named,
    Several,
    Value,
    Words,
    has_words,
    plain_words,
    readings,
    squeezed,
    tidy,
)
from mindllm.rewards.quantities import Unit, split_unit

T = TypeVar("T")

# math-verify compares decimals by their first six places. That makes all tiny numbers equal, so that the relative
# difference must be small too.
_PLACES = Fraction(1, 2 * 10**6)
_RELATIVE = Fraction(1, 10**5)
_ROUNDING = 1e-12  # relative, of floating-point arithmetic
_CERTAIN = 1e-6  # a difference that rounding does not explain
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,(?!\d{3}$)\d+")
# A range, a score, a telephone number, a date, a ratio of three: as arithmetic, other ones would have the same value.
_NO_ARITHMETIC = re.compile(r"\d+(?:\s*-\s*\d+)+|\d+(?:/\d+){2,}|\d+(?:\s*:\s*\d+){2,}")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|lt|gt|leq|geq|ne|neq|cup|cap|mathbb|setminus)(?![a-z])")
_EQUALS = re.compile(r"(?<![<>!:\\])=")


@lru_cache(maxsize=4096)
def is_same_answer(answer: str, gold: str) -> bool:
    """Tell whether ``answer`` is the answer ``gold``; both without the text in which they were found."""
    if NUMBER.fullmatch(answer) and NUMBER.fullmatch(gold):  # by far the most frequent case
        return _is_equal(answer, gold)
    answer, gold = tidy(answer), tidy(gold)
    if not answer or not gold:
        return False
    if squeezed(answer) == squeezed(gold):
        return True
    golds, found = readings(gold), readings(answer)
    if _NO_ARITHMETIC.fullmatch(split_unit(gold).value) and not any(map(has_words, golds)):
        return False
    if _DECIMAL_COMMA.fullmatch(answer):
        found = (*found, Value(answer.replace(",", ".")))
    if any(map(has_words, golds)) and plain_words(answer) == plain_words(gold):
        return True
    return any(_is_same(one, other) for one in found for other in golds)


def match_all(answers: Sequence[T], golds: Sequence[T], is_same: Callable[[T, T], bool]) -> bool:
    """Tell whether each gold has an answer of its own, in any order, and no answer is left."""
    left = list(answers)
    for gold in golds:
        position = next((position for position, answer in enumerate(left) if is_same(answer, gold)), None)
        if position is None:
            return False
        del left[position]
    return not left


def _is_same(answer: Answer, gold: Answer) -> bool:
    if isinstance(gold, Named) or isinstance(answer, Named):
        return _is_same_named(answer, gold)
    if isinstance(gold, Choice) or isinstance(answer, Choice):
        return _is_same_choice(answer, gold)
    if isinstance(gold, Several) and isinstance(answer, Several):
        return _is_same_several(answer, gold)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return isinstance(gold, Words) and isinstance(answer, Words) and answer.text == gold.text
    if isinstance(gold, Several):
        return isinstance(answer, Value) and _is_same_set(gold, answer)
    return _is_same_set(answer, gold) if isinstance(answer, Several) else _is_same_value(answer, gold)


def _is_same_named(answer: Answer, gold: Answer) -> bool:
    """``x = 3`` is ``3`` and not ``y = 3``; ``y = 2x`` is ``2x - y = 0``."""
    if isinstance(answer, Named) and isinstance(gold, Named) and answer.name == gold.name:
        return _is_same(answer.value, gold.value)
    wholes = [one.whole if isinstance(one, Named) else getattr(one, "latex", "") for one in (answer, gold)]
    if all(_EQUALS.search(whole) for whole in wholes):
        return _is_equal(wholes[0], wholes[1])
    if isinstance(answer, Named) and isinstance(gold, Named):
        return False
    return _is_same(_without_name(answer), _without_name(gold))


def _without_name(answer: Answer) -> Answer:
    return answer.value if isinstance(answer, Named) else answer


def _is_same_choice(answer: Answer, gold: Answer) -> bool:
    """``B`` is ``(b)`` and ``B. Paris``; ``B. Paris`` is ``Paris`` and not ``B. Rome``."""
    letters = [_letter(answer), _letter(gold)]
    rests = [one.rest if isinstance(one, Choice) else one for one in (answer, gold)]
    if None not in letters:
        has_both = isinstance(answer, Choice) and isinstance(gold, Choice) and None not in rests
        return letters[0] == letters[1] and (not has_both or _is_same_rest(rests))
    return _is_same_rest(rests)


def _is_same_rest(rests: Sequence[Answer | None]) -> bool:
    answer, gold = rests
    return answer is not None and gold is not None and _is_same(answer, gold)


def _letter(answer: Answer) -> str | None:
    if isinstance(answer, Choice):
        return answer.letter
    return answer.latex.upper() if isinstance(answer, Value) and re.fullmatch(r"[a-j]", answer.latex) else None


def _is_same_several(answer: Several, gold: Several) -> bool:
    """Compare lists (any order), sets (any order), sequences and tuples (in order), intervals (with their ends)."""
    if len(gold.items) == 2 and gold.brackets.strip() and "{" not in gold.brackets:
        may_be = {gold.brackets} | ({"", " "} if gold.brackets == "()" else set())
    elif "{" in gold.brackets:
        may_be = {"", "{}"}
    else:
        may_be = {"", " ", "()"} | ({"{}"} if not gold.brackets else set())
        may_be |= {"[]"} if len(gold.items) != 2 else set()
    if answer.brackets not in may_be:
        return False
    if "{}" in (answer.brackets, gold.brackets):
        return match_all(_distinct(answer.items), _distinct(gold.items), _is_same)
    if not gold.brackets and not answer.brackets.strip() and not _needs_order(answer, gold):
        return match_all(answer.items, gold.items, _is_same)
    pairs = list(zip(answer.items, gold.items, strict=False))
    return len(answer.items) == len(gold.items) and all(_is_same(one, other) for one, other in pairs)


def _needs_order(answer: Several, gold: Several) -> bool:
    """``x = 1, y = 2`` is not ``2, 1``."""
    names = {item.name for item in gold.items if isinstance(item, Named)}
    return len(names) == len(gold.items) > 1 and not all(isinstance(item, Named) for item in answer.items)


def _distinct(items: Sequence[Answer]) -> list[Answer]:
    kept: list[Answer] = []
    for item in items:
        if not any(_is_same(item, other) for other in kept):
            kept.append(item)
    return kept


def _is_same_set(several: Several, value: Value) -> bool:
    """Compare one with brackets and one without: ``(3, \\infty)`` is ``x > 3``; ``\\{5\\}`` is ``5``."""
    if len(several.items) == 1:
        return _is_same(several.items[0], value)
    if not several.brackets:
        return _is_union(several, value)
    is_set = several.brackets.strip() and _RELATION.search(value.latex)
    return bool(is_set) and _is_equal(several.whole, value.latex)


def _is_union(several: Several, value: Value) -> bool:
    """``x < 2 or x > 3`` is ``(-\\infty, 2) \\cup (3, \\infty)``."""
    from sympy import Set, Union
    from sympy.core.relational import Relational

    if not re.search(r"\bor\b", several.whole) or not re.search(r"\\(?:cup|setminus)", value.latex):
        return False
    parts = [_parse(item.latex) for item in several.items if isinstance(item, Value)]
    relations = [part for part in parts if isinstance(part, Relational)]
    whole = _parse(value.latex)
    if not isinstance(whole, Set) or len(relations) < len(several.items):
        return False
    return bool(Union(*(relation.as_set() for relation in relations)) == whole)


def _is_same_value(answer: Value, gold: Value) -> bool:
    """Compare values with units. A missing unit is any; a percentage is its number and its hundredth."""
    if answer.unit is not None and gold.unit is not None:
        if answer.unit.dimension != gold.unit.dimension:
            return False
        return _is_equal(_times(answer.latex, answer.unit.size / gold.unit.size), gold.latex)
    if _is_equal(answer.latex, gold.latex):
        return True
    in_other_words = [(_unitless(answer), gold.latex), (answer.latex, _unitless(gold))]
    return any(one is not None and other is not None and _is_equal(one, other) for one, other in in_other_words)


def _times(latex: str, factor: Fraction) -> str:
    return latex if factor == 1 else rf"({latex}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}"


def _unitless(value: Value) -> str | None:
    """Return what ``50\\%`` and ``30^\\circ`` are without their unit: ``50/100``, ``30\\pi/180``."""
    if value.unit == Unit("percent^1"):
        return _times(value.latex, Fraction(1, 100))
    return rf"({value.latex}) \cdot \frac{{\pi}}{{180}}" if value.unit == Unit("angle^1") else None


def _is_equal(answer: str, gold: str) -> bool:
    """Compare mathematics without units, given in LaTeX."""
    if NUMBER.fullmatch(answer) and NUMBER.fullmatch(gold):
        return _are_close(Fraction(answer), Fraction(gold))
    if answer.count("'") != gold.count("'"):  # the parser leaves them out: f'(2) is not f(2)
        return False
    sides = [_EQUALS.split(one) for one in (answer, gold)]
    if (len(sides[0]) > 1) != (len(sides[1]) > 1):  # 2 + 3 = 5 is 5, and 2 + 2 = 5 is not
        chain = sides[0] if len(sides[0]) > 1 else sides[1]
        return _verify(chain[0], chain[-1]) and _verify(sides[0][-1], sides[1][-1])
    return _verify(answer, gold)


def _are_close(one: Fraction, other: Fraction) -> bool:
    return abs(one - other) <= min(_PLACES, _RELATIVE * max(abs(one), abs(other)))


def _verify(answer: str, gold: str) -> bool:
    from math_verify import verify
    from sympy import Float

    left, right = _parse(gold), _parse(answer)
    if left is None or right is None:
        return squeezed(answer) == squeezed(gold)
    # No time limit of its own: it uses signals, which some code swallows; the runner kills this process instead.
    if (left.atoms(Float) or right.atoms(Float)) and not left.free_symbols | right.free_symbols:
        try:
            return _are_close_numbers(complex(left.evalf()), complex(right.evalf()))
        except (TypeError, ValueError, OverflowError, AttributeError):
            pass  # no numbers, or one that no float holds
    if _differ(left, right):
        return False
    return bool(verify(left, right, allow_set_relation_comp=True, timeout_seconds=None))


def _differ(one: Any, other: Any) -> bool:
    """Tell that two expressions are not equal by their values at a point, which takes much less time than algebra."""
    from sympy import Expr, Float

    if not isinstance(one, Expr) or not isinstance(other, Expr) or one.is_Symbol or other.is_Symbol:
        return False
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    point = {symbol: Float(0.31831 + 0.14142 * number) for number, symbol in enumerate(symbols)}
    try:
        left, right = one.subs(point).evalf(), other.subs(point).evalf()
        return bool(abs(left - right) > _CERTAIN * max(abs(left), abs(right), 1))
    except (TypeError, ValueError, OverflowError, AttributeError, ZeroDivisionError):
        return False  # no numbers: algebra must tell


def _are_close_numbers(one: complex, other: complex) -> bool:
    difference, size = abs(one - other), max(abs(one), abs(other))
    return size < math.inf and difference <= max(min(float(_PLACES), float(_RELATIVE) * size), _ROUNDING * size)


@lru_cache(maxsize=4096)
def _parse(latex: str) -> Any:
    """Return the sympy expression of LaTeX without delimiters; None where it is none."""
    from latex2sympy2_extended.math_normalization import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, Float, I, Integer, MatrixBase, Symbol

    if NUMBER.fullmatch(latex):
        return Integer(int(latex)) if latex.lstrip("+-").isdigit() else Float(latex)
    normalization = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    target = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)
    text = latex.replace("\\$", "").replace("$", "")
    found = parse(f"${text}$", [target], fallback_mode="no_fallback", parsing_timeout=None)
    if not found or not isinstance(found[0], (Basic, MatrixBase)):
        return None
    # It takes symbols as real where it sees no i, and 8i for 8 times a symbol.
    symbols = {symbol: I if symbol.name == "i" else Symbol(symbol.name, real=True) for symbol in found[0].atoms(Symbol)}
    return found[0].xreplace(symbols)
