"""What every section of a run's configuration shares: strictness, coercion and how a default is described."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A frozen group of keys that refuses unknown ones and coerces strings to the declared type."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False, protected_namespaces=()
    )


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is needed here, not true or false")
    return value


def _whole_number(value: object) -> object:
    """Read ``"1e3"`` as the whole number that it is; refuse ``true``, which Python takes for 1."""
    value = _number(value)
    if not isinstance(value, str):
        return value
    try:
        as_float = float(value)
    except ValueError:
        return value
    return int(as_float) if as_float.is_integer() else value


def _comma_list(value: object) -> object:
    """Read ``a`` and ``"a,b"`` as the lists that they mean."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return [value] if isinstance(value, int) else value


Int = Annotated[int, BeforeValidator(_whole_number)]
Float = Annotated[float, BeforeValidator(_number)]
CommaList = BeforeValidator(_comma_list)


def derived(factory: Callable[[dict[str, Any]], Any], text: str, description: str, **rules: Any) -> Any:
    """A field whose default is computed from the fields above it; ``text`` says how, for the documentation."""
    return Field(default_factory=factory, description=description, json_schema_extra={"default_text": text}, **rules)
