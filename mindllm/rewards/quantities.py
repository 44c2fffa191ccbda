"""Units of measure in answers: ``15 kg``, ``10\\text{ cm}^2``, ``\\$5``, ``30^\\circ``, ``2 million``."""

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

# What is measured -> names of a unit (plurals in "s" are understood) -> its size.
_TABLE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "length": {
            "mm millimeter millimetre": "1/1000",
            "cm centimeter centimetre": "1/100",
            "dm decimeter decimetre": "1/10",
            "m meter metre": "1",
            "km kilometer kilometre": "1000",
            "in inch inches": "0.0254",
            "ft foot feet": "0.3048",
            "yd yard": "0.9144",
            "mi mile": "1609.344",
        },
        "length^3": {
            "ml mL cc milliliter millilitre": "1/1000000",
            "cl cL centiliter centilitre": "1/100000",
            "l L liter litre": "1/1000",
            "gal gallon": "0.003785411784",
        },
        "mass": {
            "mg milligram": "1/1000",
            "g gm gram": "1",
            "kg kilo kilogram": "1000",
            "tonne": "1000000",
            "lb pound": "453.59237",
            "oz ounce": "28.349523125",
        },
        "time": {
            "ms millisecond": "1/1000",
            "s sec second": "1",
            "min minute": "60",
            "h hr hour": "3600",
            "day": "86400",
            "week": "604800",
        },
        "calendar": {"month": "1", "yr year": "12"},
        "frequency": {"Hz hertz": "1", "kHz": "1000", "MHz": "1000000", "GHz": "1000000000"},
        "force": {"N newton": "1", "kN": "1000"},
        "energy": {"J joule": "1", "kJ": "1000"},
        "power": {"W watt": "1", "kW": "1000", "MW": "1000000"},
        "pressure": {"Pa pascal": "1", "kPa": "1000"},
        "current": {"A amp ampere": "1", "mA": "1/1000"},
        "voltage": {"V volt": "1", "mV": "1/1000", "kV": "1000"},
        "resistance": {"ohm Ω Omega": "1"},
        "kelvin": {"K °K kelvin": "1"},
        "celsius": {"°C °celsius celsius": "1"},
        "fahrenheit": {"°F °fahrenheit fahrenheit": "1"},
        "amount": {"mol mole": "1"},
        "angle": {"° deg degree": "1"},
        "radian": {"rad radian": "1"},
        "percent": {"% percent percentage pct": "1"},
        "dollar": {"$ dollar usd USD": "1", "¢ cent": "1/100"},
        "euro": {"€ euro eur EUR": "1"},
        "pound sterling": {"£ gbp GBP": "1"},
        "yen": {"¥ yen": "1"},
        "rupee": {"₹ rupee": "1"},
    }
)
_UNITS = {
    name: (dimension, Fraction(size))
    for dimension, units in _TABLE.items()
    for names, size in units.items()
    for name in names.split()
}
_MAGNITUDES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_COMPOSED = {"mph": "mile / hour", "kmh": "km / hour", "kph": "km / hour", "per": "/"}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
# What may follow a number without counting or measuring anything.
_NOT_UNITS = frozenset(
    "or and to in of at by plus minus times over from than more less half out pi sqrt sin cos tan log ln exp mod "
    "cot sec csc max min gcd lcm".split()
) - {"in", "min"}

_FONT = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname|rm)"
_POWER = r"(?:\s*(?:\^\s*(?:\{\s*-?\d\s*\}|-?\d)|[²³]))"
_LATEX_UNIT = rf"(?:{_FONT}\s*\{{[^{{}}]*\}}{_POWER}?(?:\s*(?:/|\\cdot)\s*)?)+"
_SIGN = rf"(?:\^\s*\{{?\s*\\circ\s*\}}?|\\degree|°)\s*(?:[CF]|{_FONT}\s*\{{\s*[CF]\s*\}})?|\\?%|¢|€|\\?\$"
_WORD = rf"[A-Za-zΩ]+\.?{_POWER}?"
_GAP = r"(?:\s|~|\\[,;:! ]|\\quad)*"
_WITH_UNIT = re.compile(rf"(?P<value>.*?[\w}})\]!.]){_GAP}(?P<unit>{_LATEX_UNIT}|{_SIGN})", re.DOTALL)
_WITH_WORDS = re.compile(
    rf"(?P<value>.*[\d}}])(?P<gap>{_GAP})-?(?P<unit>{_WORD}(?:(?:\s*/\s*|[\s-]+){_WORD}){{0,3}})", re.DOTALL
)
_WITH_CURRENCY = re.compile(r"(?P<sign>-?)\s*(?P<unit>\\?\$|€|£|¥|₹)\s*(?P<value>[-+.\d\\].*)", re.DOTALL)
_ORDINAL = re.compile(r"\d*(?:1[123]th|(?<!1)(?:1st|2nd|3rd)|[04-9]th)")
_EXPONENT = r"[eE][-+]?\d+|\s*(?:\\times|\\cdot|x)\s*10\s*\^\s*(?:-?\d+|\{\s*-?\d+\s*\})"
_FRACTION = r"\s*/\s*\d+|\s+\d+/\d+|\s*\\frac\s*(?:\d\s*\d|\{\d+\}\s*\{\d+\})"
_PLAIN_NUMBER = re.compile(rf"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:{_EXPONENT}|{_FRACTION})?")
_SUMMAND = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*([A-Za-z]+)\.?\s*(?:,\s*|and\s+)?")
_UNIT_TOKEN = re.compile(
    r"(?P<over>/)|(?P<name>°[A-Za-z]*|[A-Za-zΩ]+|[%¢€£¥₹$])(?:\s*\^\s*(?P<power>-?\d)|\s+(?P<after>squared|cubed)\b)?"
)


class Unit(NamedTuple):
    """A unit of measure. One that is not in the table measures its own name; ``units`` measures nothing."""

    dimension: str
    size: Fraction = Fraction(1)


class Measured(NamedTuple):
    """An answer taken apart."""

    value: str  # what stands before the unit
    unit: Unit | None
    factor: int = 1  # 1000000 for ``5 million dollars``


def split_unit(text: str) -> Measured:
    """Take the unit off an answer; without one the whole text is the value."""
    if (found := _WITH_CURRENCY.fullmatch(text)) is not None:
        inner = split_unit(found["value"].strip())
        return Measured(found["sign"] + inner.value, _unit(found["unit"]), inner.factor)
    if _ORDINAL.fullmatch(text):
        return Measured(text[:-2], Unit(""))
    found = _WITH_UNIT.fullmatch(text) or _WITH_WORDS.fullmatch(text)
    if found is None:
        return Measured(text, None)
    value, phrase = found["value"].strip(), _plain(found["unit"])
    first, _, rest = phrase.partition(" ")
    factor = _MAGNITUDES.get(first.lower(), 1)
    if factor > 1:
        phrase = rest.removeprefix("of ")
    is_word = found.re is _WITH_WORDS
    if phrase and not (_are_units(value, phrase, found["gap"]) if is_word else _are_latex_units(phrase)):
        return Measured(text, None)
    return Measured(value, _unit(phrase) if phrase else None, factor)


def add_up(text: str) -> tuple[Fraction, Unit] | None:
    """Add up ``1 hour 30 minutes`` or ``6 ft 2 in``; None for anything but two or more quantities of one kind."""
    parts = _SUMMAND.findall(text)
    if len(parts) < 2 or _SUMMAND.sub("", text).strip() or not all(known_unit(name) for _, name in parts):
        return None
    units = [_unit(name) for _, name in parts]
    is_descending = all(larger.size > smaller.size for larger, smaller in pairwise(units))  # 5 ft, 6 ft is a list
    if len({unit.dimension for unit in units}) > 1 or not is_descending:
        return None
    sizes = [Fraction(number.replace(",", "")) * unit.size for (number, _), unit in zip(parts, units, strict=True)]
    return sum(sizes, Fraction(0)), Unit(units[0].dimension)


def _plain(phrase: str) -> str:
    """Return a unit without LaTeX: ``\\text{ cm}^{2}`` is ``cm^2``."""
    text = re.sub(rf"{_FONT}\s*\{{([^{{}}]*)\}}", r" \1 ", phrase)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", "°", text).replace("²", "^2").replace("³", "^3")
    text = re.sub(r"\\cdot|[\\{}~]", lambda found: " " if found[0] == "\\cdot" else "", text)
    text = re.sub(r"(?:°|degrees?)\s+(?=(?:[CFK]|celsius|fahrenheit)\b)", "°", " ".join(text.split()), flags=re.I)
    return re.sub(r"\s*\^\s*", "^", text).strip(" .")


def _are_units(value: str, phrase: str, gap: str) -> bool:
    """Tell ``15 kg`` and ``12 red apples`` from ``2x``, ``3 sin x`` and ``10 Downing Street``."""
    words = re.findall(r"[A-Za-zΩ]+", phrase)
    if any(word.lower() in _NOT_UNITS for word in words):
        return False
    is_plain = _PLAIN_NUMBER.fullmatch(value) is not None
    if all(known_unit(word) for word in words):
        return all(len(word) > 1 for word in words) or (is_plain and bool(gap))
    return is_plain and all(len(word) > 2 and word.islower() for word in words)


def _are_latex_units(phrase: str) -> bool:
    """Tell ``5\\text{ ways}`` from ``4\\text{ or more}`` and ``x\\text{ or }``."""
    words = re.findall(r"[A-Za-zΩ]+", phrase)
    return not any(word.lower() in _NOT_UNITS for word in words)


def known_unit(word: str) -> str | None:
    """Return the name under which the table has a word, None if it has none."""
    if word in _POWERS or word in _COMPOSED:
        return word
    forms = (word, word.removesuffix("s"), word.lower(), word.lower().removesuffix("s"))
    return next((form for form in forms if form in _UNITS), None)


def _unit(phrase: str) -> Unit:
    """Read a unit such as ``cm^2``, ``square feet`` or ``miles per hour``."""
    text = " ".join(_COMPOSED.get(word, word) for word in _plain(phrase).split())
    dimensions: Counter[str] = Counter()
    size, sign, power = Fraction(1), 1, 1
    for token in _UNIT_TOKEN.finditer(text):
        name = token["name"]
        if token["over"]:
            sign = -1
        elif name.lower() in _POWERS:
            power = _POWERS[name.lower()]
        elif name.lower() not in ("unit", "units"):
            power *= int(token["power"] or _POWERS.get(token["after"] or "", 1)) * sign
            default = (name.lower().removesuffix("s"), Fraction(1))
            dimension, one = _UNITS.get(known_unit(name) or "", default)
            base, _, cube = dimension.partition("^")
            dimensions[base] += power * int(cube or 1)
            size *= one**power
            power = 1
    return Unit(" ".join(f"{name}^{power}" for name, power in sorted(dimensions.items()) if power), size)
