"""Final answers, read into their structure: numbers, mathematics, quantities, lists, choices, texts."""

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import accumulate

from mindllm.rewards.quantities import Unit, add_up, split_unit

NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")

_TO_LATEX = {
    "−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "±": r"\pm ", "⟨": "(", "⟩": ")", "²": "^2", "³": "^3", "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "ℝ": r"\mathbb{R}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
    "\u00a0": " ", "“": '"', "”": '"', "‘": "'", "’": "'",
}  # fmt: skip
_SIGNS = str.maketrans(_TO_LATEX)
_FONT = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|boxed|fbox|rm|bf)"
# What changes how an answer looks and not what it says, in the order in which it is replaced.
_LOOKS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\\)\\[!()\[\]]|\\displaystyle(?![A-Za-z])", ""),
        (r"\{,\}", ","),
        (r"\\(?:left|right|[bB]igg?)(?![A-Za-z])\s*(?:\.(?!\d))?", ""),
        (r"(?<=\d)(?:\\,|\\ )(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![a-z])|~|\\hspace\{[^}]*\}", " "),
        (rf"{_FONT}\s*\{{\s*(\(?[A-J][).:]?|[a-z])\s*\}}", r" \1 "),
        (rf"{_FONT}\s*\{{([:.,])\}}", r"\1"),
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\langle", "("),
        (r"\\rangle", ")"),
        (r"\\varnothing", r"\\emptyset"),
        (r"\\[lr]brace(?![a-z])", lambda found: r"\{" if found[0] == r"\lbrace" else r"\}"),
        (r"\\l?dots", "..."),
    )
)
_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\$\$([^$]*)\$\$",
        r"\$([^$]*)\$",
        r"\*\*([^*]*)\*\*",
        rf"{_FONT}\s*\{{([^{{}}]*)\}}",
        r"\"([^\"]*)\"|'([^']*)'|`([^`]*)`",
        r"(.*\S)\s*[.,;:]",
        r"=(.+)",
        rf"(?:\\approx(?![a-z])|(?:about|approximately|roughly)\b|{_FONT}\s*\{{\s*(?:about|approximately)\s*\}})(.+)",
    )
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?")
# Times, versions and addresses of networks, hexadecimal numbers: digits that are no arithmetic.
_VERBATIM = re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?:\s*[ap]\.?\s?m\.?)?|\d+(?:\.\d+){2,}|0x[0-9a-f]+", re.I)
_DEEPEST = 20  # brackets in brackets; neither answers nor parsers go further
_BASE = re.compile(r"([0-9A-F]+)_\{?(\d{1,2})\}?")
_SEPARATOR = re.compile(rf"\s*(?:[,;]|{_FONT}\s*\{{\s*,?\s*(?:and|or)\s*\}}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*")
_EQUALS = re.compile(r"(?<![<>!:\\])=|\\approx(?![a-z])|\\in(?![a-z])")
_OPTION = re.compile(
    r"(?:(?:option|choice)\s*)?(?:\((?P<in_brackets>[A-Ja-j])\)[.:]?(?=\s|$)|(?P<bare>[A-J])(?:[).:](?=\s|$)|$))"
    r"\s*(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_MAY_BE_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|.*\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec).*", re.I | re.DOTALL
)
_DATES = tuple(
    (f"{form} %Y" if has_year else form, "%Y-%m-%d" if has_year else "%m-%d")
    for has_year in (True, False)
    for form in ("%B %d", "%d %B", "%b %d", "%d %b")
) + (("%Y-%m-%d", "%Y-%m-%d"), ("%B %Y", "%Y-%m"))
_FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc log ln exp gcd lcm max min pi theta"
_PLAIN_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({'|'.join(_FUNCTIONS.split())})(?![A-Za-z])")
_REPEATING = re.compile(r"(?P<sign>-?)(?P<whole>\d*)\.(?P<fixed>\d*)\\overline\{?(?P<repeated>\d+)\}?")
# What people write without LaTeX -> LaTeX
_PLAIN = (
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)|√\s*(?:\(([^()]*)\)|(\w+))"),
     lambda found: rf"\sqrt{{{found[1] or found[2] or found[3]}}}"),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"(?<![\d./])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?!\w)"), r"\1\\times 10^{\2}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d)\s*x\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\^\s*(-\s*\d+)"), r"^{\1}"),
    (_PLAIN_FUNCTION, r"\\\1 "),
)  # fmt: skip
_OPERATORS = tuple("+-*/^=<>_()[]{}|!")


@dataclass(frozen=True)
class Words:
    """A text."""

    text: str


@dataclass(frozen=True)
class Choice:
    """An option of a multiple choice question: ``B``, ``(B)`` or ``B. Paris``."""

    letter: str
    rest: "Answer | None"


@dataclass(frozen=True)
class Value:
    """Mathematics, with or without a unit."""

    latex: str
    unit: Unit | None = None


@dataclass(frozen=True)
class Named:
    """A value and what has it: ``x = 3``, ``f(x) = x^2``, ``x \\in [0, 1]``."""

    name: str
    value: "Answer"
    whole: str


@dataclass(frozen=True)
class Several:
    """A list, tuple, interval or set."""

    brackets: str  # "" for ``1, 2``; " " for ``1 2``; else the opening and the closing one
    items: tuple["Answer", ...]
    whole: str


Answer = Words | Choice | Value | Named | Several


def tidy(text: str) -> str:
    """Return an answer without what does not change it: delimiters, fonts, spacing commands, a final full stop."""
    text = text.translate(_SIGNS)
    for pattern, replacement in _LOOKS:
        text = pattern.sub(replacement, text)
    before = ""
    while text != before:
        before, text = text, text.strip()
        for wrapper in _WRAPPERS:
            if (found := wrapper.fullmatch(text)) is not None:
                text = next(group for group in found.groups() if group is not None)
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:
        text = re.sub(r"(?<!\\)\$", "", text)
    return " ".join(text.split())


def without_fonts(text: str) -> str:
    """Return ``the answer is 4`` for ``\\text{the answer is } 4``."""
    return re.sub(rf"{_FONT}\s*\{{([^{{}}]*)\}}", r" \1 ", text)


def squeezed(text: str) -> str:
    """Return the text without the white space that separates neither words nor numbers."""
    return re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)


@lru_cache(maxsize=4096)
def readings(text: str) -> tuple[Answer, ...]:
    """Read a tidy text. Most have one reading; ``1,234`` is a number or a list, and so is ``10 000``."""
    texts = [text]
    if _THOUSANDS.search(text):
        texts.insert(0, _without_thousands_separators(text))
    if _SPACED_THOUSANDS.fullmatch(text):
        texts.append(text.replace(" ", ""))
    return tuple(_read(one) for one in texts)


def item_lists(text: str) -> list[list[str]]:
    """Cut a list, a tuple or a set into its items, with commas between thousands left in and cut at."""
    text = tidy(text)
    return [
        [sign for item in _cut(_inside(one)[1]) for sign in _both_signs(item)]
        for one in (_without_thousands_separators(text), text)
    ]


def has_words(answer: Answer) -> bool:
    """Tell whether an answer is a text or has one in it."""
    if isinstance(answer, Several):
        return any(map(has_words, answer.items))
    return isinstance(answer, Words) or (isinstance(answer, Named) and has_words(answer.value))


def _without_thousands_separators(text: str) -> str:
    return _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)


def _read(text: str) -> Answer:
    if NUMBER.fullmatch(text):
        return Value(text)
    if (date := _date(text)) is not None or _VERBATIM.fullmatch(without_fonts(text).strip()):
        return Words(date or plain_words(text))
    if max(_depths(text), default=0) > _DEEPEST:
        return Words(text)
    if (compound := add_up(text)) is not None:
        return Value(f"{compound[0].numerator}/{compound[0].denominator}", compound[1])
    return _read_several(text) or _read_option(text) or _read_named(text) or _read_value(text)


def _read_several(text: str) -> Several | None:
    brackets, inside = _inside(text)
    items = [sign for item in _cut(inside) for sign in _both_signs(item)]
    words = text.split()
    if len(words) > 1 and all(map(NUMBER.fullmatch, words)):
        return Several(" ", tuple(Value(word) for word in words), text)
    if (len(items) == 1 and brackets != "{}") or re.search(r"\\p?mod|\\begin|\\mid", text):
        return None
    return Several(brackets, tuple(_read(tidy(item)) for item in items), text)


def _inside(text: str) -> tuple[str, str]:
    """Return the brackets around the whole text, "" without such, and what they enclose."""
    plain = text.replace(r"\{", "{").replace(r"\}", "}")
    depths = _depths(plain)
    if len(plain) < 2 or plain[0] not in "([{" or depths[-1] != 0 or 0 in depths[:-1]:
        return "", text
    if (plain[0] == "{") != (plain[-1] == "}"):
        return "", text
    return plain[0] + plain[-1], plain[1:-1].strip()


def _depths(text: str) -> list[int]:
    """Return how many brackets are open after each character."""
    return list(accumulate((character in "([{") - (character in ")]}") for character in text))


def _cut(text: str) -> list[str]:
    """Cut at the commas, semicolons, "and" and "or" that are in no brackets."""
    items, start = [], 0
    depths = [0, *_depths(text)]
    for found in _SEPARATOR.finditer(text):
        if depths[found.start()] == 0:
            items.append(text[start : found.start()].strip())
            start = found.end()
    items.append(text[start:].strip())
    # In ``1, 2, and 3`` nothing stands between two separators.
    return [item for item in items if item] or [text]


def _both_signs(item: str) -> list[str]:
    if "\\pm" not in item:
        return [item]
    return [re.sub(r"\\pm(?![a-z])\s*", sign, item).removeprefix("+") for sign in "+-"]


def _read_option(text: str) -> Choice | None:
    found = _OPTION.fullmatch(text)
    if found is None or (found["bare"] or "A").islower():
        return None
    rest = tidy(found["rest"])
    return Choice((found["in_brackets"] or found["bare"]).upper(), _read(rest) if rest else None)


def _read_named(text: str) -> Named | None:
    depths = [0, *_depths(text)]
    found = next((found for found in _EQUALS.finditer(text) if depths[found.start()] == 0), None)
    if found is None:
        return None
    name, rest = text[: found.start()].strip(), text[found.end() :].strip()
    # A digit in the left side, as in 2x = 8, says that the right side is not what was asked for.
    plain = re.sub(r"_\{[^{}]*\}|_\w|(?<=[A-Za-z])\([^()]*\)", "", name)
    if not rest or not re.search(r"[A-Za-z]", name) or re.search(r"\d", plain):
        return None
    return Named(squeezed(name), _read(tidy(rest)), text)


def _read_value(text: str) -> Value | Words:
    if (based := _BASE.fullmatch(text)) is not None:
        return Value(based[1], Unit(f"base {based[2]}"))
    measured = split_unit(text)
    latex = _as_latex(tidy(measured.value))
    if not _is_mathematics(latex):
        return Words(plain_words(text))
    latex = latex if measured.factor == 1 else rf"{measured.factor} \cdot ({latex})"
    return Value(latex, measured.unit if measured.unit and measured.unit.dimension else None)


def _as_latex(text: str) -> str:
    """Write in LaTeX what people write without: ``sin x``, ``sqrt(2)``, ``1 1/2``, ``3e8``, ``0.\\overline{3}``."""
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    return _REPEATING.sub(_repeating, text)


def _repeating(found: "re.Match[str]") -> str:
    whole, fixed, repeated = found["whole"] or "0", found["fixed"], found["repeated"]
    nines = "9" * len(repeated) + "0" * len(fixed)
    return rf"{found['sign']}\frac{{{int(whole + fixed + repeated) - int(whole + fixed)}}}{{{nines}}}"


def _is_mathematics(text: str) -> bool:
    """Tell mathematics from words, which a parser would read as products of their letters."""
    if not text or not text.isascii() or re.search(rf"{_FONT}\s*\{{[^}}]*[A-Za-z]{{2}}", text):
        return False
    plain = re.sub(r"\\(?:begin|end|operatorname|mathbb|mathcal)\s*\{\w+\}|\\[A-Za-z]+", " + ", text)
    return all(map(_is_product, re.finditer(r"[A-Za-z]{2,}", plain)))


def _is_product(letters: "re.Match[str]") -> bool:
    """Tell the letters in ``2xy`` and ``ab + c`` from those in ``Dec 25`` and ``yes``."""
    before, after = letters.string[: letters.start()], letters.string[letters.end() :]
    touches = before[-1:].isdigit() or before.rstrip().endswith(_OPERATORS) or after.lstrip().startswith(_OPERATORS)
    return touches and len(letters[0]) <= 3 and letters[0].islower()


def _date(text: str) -> str | None:
    """Return a date in one form: ``July 4th, 1776`` is ``1776-07-04``, ``4 July`` is ``07-04``."""
    if not _MAY_BE_DATE.fullmatch(text):
        return None
    words = " ".join(re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|[,.]|\bof\b", " ", text).split())
    for form, canonical in _DATES:
        # Without a year, a leap year's: otherwise there would be no February 29.
        given, expected = (words, form) if "%Y" in form else (f"2000 {words}", f"%Y {form}")
        try:
            return datetime.strptime(given, expected).strftime(canonical)
        except ValueError:
            continue
    return None


def plain_words(text: str) -> str:
    """Return the words of a text: no LaTeX, case or punctuation, and no article in front."""
    text = unicodedata.normalize("NFKC", without_fonts(text)).casefold()
    text = re.sub(r"_\{?(\d+)\}?", r"\1", re.sub(r"(?<=[^\W\d])-(?=[^\W\d])", " ", text))
    text = re.sub(r"(?<=\d)\s*([ap])\.?\s?m\b\.?", r" \1m", text)
    text = re.sub(r"(?<!\d)[.,:](?!\d)|[.,:](?!\d)|(?<!\d)[.,:]|[;!?\"'`$]", " ", text)
    return re.sub(r"^(?:the|an|a) ", "", " ".join(text.split()))
