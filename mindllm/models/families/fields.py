"""Reading single values of a parsed ``config.json``, with errors that name the field."""

from collections.abc import Mapping
from typing import Any

from mindllm.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")


def positive_int(values: Mapping[str, Any], key: str, source: str) -> int:
    """Return the positive whole number under ``key``."""
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{source}: {key} is {value!r}; a positive whole number is needed")
    return value


def positive_float(values: Mapping[str, Any], key: str, source: str) -> float:
    """Return the positive number under ``key``."""
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UserError(f"{source}: {key} is {value!r}; a positive number is needed")
    return float(value)


def boolean(values: Mapping[str, Any], key: str, source: str) -> bool:
    """Return the truth value under ``key``."""
    value = values.get(key)
    if not isinstance(value, bool):
        raise UserError(f"{source}: {key} is {value!r}; true or false is needed")
    return value


def dtype_name(config: Mapping[str, Any], source: str) -> str:
    """Return the stated dtype; transformers writes ``dtype``, and wrote ``torch_dtype`` before."""
    value = config.get("dtype") or config.get("torch_dtype") or "float32"
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise UserError(f"{source}: dtype is {value!r}; supported are {', '.join(DTYPES)}")
    return name
