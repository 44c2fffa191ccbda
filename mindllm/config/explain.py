"""Turn what pydantic says into sentences that name the key as the user wrote it."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mindllm.config.base import Section
from mindllm.config.foreign import unknown_key
from mindllm.config.layers import KEYS_BY_SECTION, Findings
from mindllm.config.sections import KL_ALIASES
from mindllm.config.training import STAGE_ALIASES
from mindllm.errors import did_you_mean

AnySection = TypeVar("AnySection", bound=Section)

_ALIASES = STAGE_ALIASES | KL_ALIASES
_KINDS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def validated(
    section: type[AnySection], values: Mapping[str, Any], path: str, sources: Mapping[str, str], findings: Findings
) -> AnySection | None:
    """Build ``section`` from ``values``; on failure note a sentence per mistake and return None.

    ``sources`` names the dotted key each value came from; keys that are not in it are named under ``path``.
    """
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        for details in error.errors():
            sentence = _sentence(section, details, path, sources)
            if not _follows_from_another(details, sentence, findings):
                findings.errors.append(sentence)
        return None


def _follows_from_another(error: ErrorDetails, sentence: str, findings: Findings) -> bool:
    """A default that waits for a wrong value, or a key that is missing because its value was refused."""
    missing = f"{sentence.split(' is missing')[0]}:"
    refused = error["type"] == "missing" and any(earlier.startswith(missing) for earlier in findings.errors)
    return refused or error["type"] == "default_factory_not_called"


def _sentence(section: type[Section], error: ErrorDetails, path: str, sources: Mapping[str, str]) -> str:
    first, *rest = error["loc"]
    where = sources.get(str(first), f"{path}.{first}") + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest
    )
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        field = section.model_fields.get(str(first)) if not rest else None
        return f"{where} is missing: {field.description}" if field else f"{where} is missing"
    if kind == "extra_forbidden":
        return unknown_key(where, _siblings(section, error["loc"]), KEYS_BY_SECTION if not rest else {})
    if kind in _KINDS:
        return f"{where} is {value!r}: {_KINDS[kind]} is needed here"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{where} is {value!r}: it must be {words} {context[name]}"
    if kind == "literal_error":
        allowed = str(context["expected"])
        names = [name.strip("'") for name in allowed.replace(" or ", ", ").split(", ")]
        names += [alias for alias, name in _ALIASES.items() if name in names]
        return f"{where} is {value!r}: allowed is {allowed}{did_you_mean(str(value), names)}"
    if kind == "string_too_short":
        return f"{where} is empty: {section.model_fields[str(first)].description}"
    return f"{where}: {str(context.get('error') or error['msg'])}"


def _siblings(section: type[Section], location: tuple[int | str, ...]) -> list[str]:
    """Names of the keys beside the unknown one, following nested sections and lists of sections."""
    current: Any = section
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        annotation = current.model_fields[str(part)].annotation
        current = next(iter(getattr(annotation, "__args__", ())), annotation)
    return list(current.model_fields)
