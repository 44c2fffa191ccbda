"""The built-in reward functions by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# f(completions, **columns) -> one float per completion, or None for "no opinion"; the same as a user's function.
RewardFunction = Callable[..., Any]


_NO_STAND_INS: Mapping[str, str] = MappingProxyType({})


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Builtin:
    """A built-in reward function and how a worker treats it."""

    function: RewardFunction
    prepare: Callable[[], None]  # run once in each worker, so that slow imports do not count as scoring time
    score_at_timeout: float | None  # what a completion gets that takes too long; None: that is an error
    stand_ins: Mapping[str, str]  # column it reads -> column that takes its place where the data has only that one


BUILTINS: dict[str, Builtin] = {}


def reward(
    name: str,
    *,
    prepare: Callable[[], None] = _nothing,
    score_at_timeout: float | None = None,
    stand_ins: Mapping[str, str] = _NO_STAND_INS,
) -> Callable[[RewardFunction], RewardFunction]:
    """Register the decorated function as the built-in reward ``name``; see ``Builtin`` for the rest.

    Raises ValueError when the name is taken.
    """

    def register(function: RewardFunction) -> RewardFunction:
        if name in BUILTINS:
            raise ValueError(f"reward '{name}' is registered twice")
        BUILTINS[name] = Builtin(function, prepare, score_at_timeout, stand_ins)
        return function

    return register
