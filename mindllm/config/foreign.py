"""What to say about a key, a section or a flag that is not one of ours."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindllm.config.foreign_names import ABSENT, RENAMED, SECTIONS_ELSEWHERE
from mindllm.errors import did_you_mean, known_answer, misspelled, near_names

_MOST_NAMES = 8


def unknown_key(path: str, here: Iterable[str], elsewhere: Mapping[str, Iterable[str]]) -> str:
    """One sentence about the unknown key ``path`` (dotted).

    Args:
        here: keys of the section that ``path`` is in.
        elsewhere: keys of the other sections, by the section's dotted name.
    """
    leaf = path.rsplit(".", 1)[-1].replace("-", "_")
    for section, keys in elsewhere.items():
        if leaf in keys:
            return f"{path}: this section has no such key; write {section}.{leaf}"
    places = {key: f"{section}.{key}" for section, keys in elsewhere.items() for key in keys}
    places |= {key: key for key in here}
    is_misspelled = leaf not in RENAMED and misspelled(leaf, places)
    answer = None if is_misspelled else foreign_answer(leaf)
    if answer is None:
        near = " or ".join(f"'{places[name]}'" for name in near_names(leaf, places))
        answer = f"; did you mean {near}?" if near else "; docs/configuration.md lists every key"
    return f"{path}: unknown key{answer}"


def foreign_answer(name: str) -> str | None:
    """What another toolkit's ``name`` is called here, or why there is no such thing; None where it is not known."""
    plain = name.replace("-", "_").strip("_")
    if plain in RENAMED:
        return f" (another toolkit's name); write {RENAMED[plain]}"
    absent = known_answer(plain, ABSENT)
    return None if absent is None else f" (another toolkit's name): {absent}; remove it"


def unknown_section(name: str, keys: Mapping[str, Any], sections: Iterable[str]) -> str:
    """One sentence about the unknown section ``name``, with what its keys are called here."""
    home = SECTIONS_ELSEWHERE.get(name)
    belongs = f" (another toolkit's name); write its keys in {home}" if home else did_you_mean(name, sections)
    known = [f"{key} -> {RENAMED[key]}" for key in dict.fromkeys(_leaves(keys)) if key in RENAMED]
    more = f", and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    renamed = f"; they are called otherwise here: {', '.join(known[:_MOST_NAMES])}{more}" if known else ""
    return f"{name}: unknown section{belongs}{renamed}; the sections are {', '.join(sections)}"


def _leaves(keys: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        yield str(key).replace("-", "_")


def unknown_flag(flag: str, sections: Mapping[str, Iterable[str]]) -> str | None:
    """What to say about a flag that is a key here or elsewhere; None where it is neither.

    Args:
        flag: as written, with its dashes.
        sections: keys by the section's dotted name.
    """
    name = flag.strip("-").replace("-", "_")
    if "." in name:
        return f"keys are written without dashes, {name}=VALUE"
    for section, keys in sections.items():
        if name in keys:
            return f"keys are written without dashes, {section}.{name}=VALUE"
    answer = foreign_answer(name)
    return None if answer is None else f"not a flag here{answer}"
