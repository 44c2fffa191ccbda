"""What can be wrong with the rewards of a config, found before anything is loaded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from mindllm.errors import UserError, did_you_mean
from mindllm.rewards import accuracy, formats  # noqa: F401  (they register themselves)
from mindllm.rewards.plugins import Parameters, inspect_plugin, parameters_of
from mindllm.rewards.registry import BUILTINS

_OF_TAGS = ("format", "strict_format")
_ALWAYS_GIVEN = ("completions", "prompts")


class RewardSpec(Protocol):
    """One reward of the config: a built-in by its name, or the function ``name`` of the Python file ``path``."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def weight(self) -> float: ...  # noqa: D102
    @property
    def path(self) -> str | None: ...  # noqa: D102
    @property
    def args(self) -> Mapping[str, Any]: ...  # noqa: D102


def check_rewards(functions: Sequence[RewardSpec], available_columns: Collection[str]) -> None:
    """Check names, files, arguments and columns; no user code runs.

    Args:
        functions: the rewards of the config.
        available_columns: column names of the data set, besides the prompt.

    Raises:
        UserError: no rewards, an unknown name, a missing file or function, an argument the function does not take or
            that hides a column, or a parameter for which there is no column.
    """
    if not functions:
        raise UserError(f"reward.functions: none given; the built-in ones are {', '.join(sorted(BUILTINS))}")
    seen: list[tuple[str, str | None, dict[str, Any]]] = []
    for spec in functions:
        identity = (spec.name, spec.path, dict(spec.args))
        if identity in seen:
            raise UserError(f"reward '{spec.name}' is listed twice with the same arguments; give it one weight instead")
        seen.append(identity)
        parameters = _find(spec)
        if parameters is not None:
            _check_parameters(spec, parameters, available_columns)


def labels(functions: Sequence[RewardSpec]) -> list[str]:
    """Return the names under which results are reported: ``name``, or ``name_1``, ``name_2`` where it occurs again."""
    names = [spec.name for spec in functions]
    return [
        name if names.count(name) == 1 else f"{name}_{names[: position + 1].count(name)}"
        for position, name in enumerate(names)
    ]


def _find(spec: RewardSpec) -> Parameters | None:
    if spec.path is not None:
        return inspect_plugin(spec.name, spec.path)
    if spec.name not in BUILTINS:
        hint = did_you_mean(spec.name, BUILTINS) or "; a function of your own needs a 'path'"
        raise UserError(f"unknown reward '{spec.name}', the built-in ones are {', '.join(sorted(BUILTINS))}{hint}")
    return parameters_of(BUILTINS[spec.name].function)


def _check_parameters(spec: RewardSpec, parameters: Parameters, columns: Collection[str]) -> None:
    named = {*parameters.required, *parameters.optional}
    if "completions" not in named and not parameters.takes_any:
        raise UserError(
            f"reward '{spec.name}' takes no 'completions'; it is called as {spec.name}(completions=[...], ...)"
        )
    for key in spec.args:
        if key in _ALWAYS_GIVEN or key in columns:
            raise UserError(f"reward '{spec.name}': the argument '{key}' hides the data of that name; rename it")
        if key not in named and not parameters.takes_any:
            raise UserError(f"reward '{spec.name}' takes no argument '{key}'{did_you_mean(key, named)}")
    if spec.path is None:
        _check_allowed_values(spec)
    stand_ins = BUILTINS[spec.name].stand_ins if spec.path is None else {}
    for name in parameters.required:
        if stand_ins.get(name) in columns:
            continue
        if name not in _ALWAYS_GIVEN and name not in spec.args and name not in columns:
            found = (", ".join(sorted(columns)) or "none") + did_you_mean(name, columns)
            raise UserError(f"reward '{spec.name}' needs the column '{name}', columns in the data: {found}")


def _check_allowed_values(spec: RewardSpec) -> None:
    hints = get_type_hints(BUILTINS[spec.name].function)
    for key, value in spec.args.items():
        allowed = get_args(hints.get(key)) if get_origin(hints.get(key)) is Literal else ()
        if allowed and value not in allowed:
            raise UserError(
                f"reward '{spec.name}': the argument '{key}' is {value!r}, allowed are {', '.join(allowed)}"
                f"{did_you_mean(str(value), allowed)}"
            )


def solution_column(functions: Iterable[RewardSpec], columns: Collection[str]) -> str | None:
    """Return the one of the columns in which ``accuracy`` finds its solutions; None where neither is needed."""
    if not any(spec.path is None and spec.name == "accuracy" for spec in functions):
        return None
    return next((name for name in ("solution", "labels") if name in columns), None)


def describe_lists(functions: Sequence[RewardSpec], list_columns: Collection[str]) -> list[str]:
    """Say, for each reward that reads a column of lists, how it takes them; for the start of a run.

    Args:
        functions: the rewards of the config, checked.
        list_columns: the columns of the data set that hold lists.
    """
    found = []
    for spec in functions:
        column = solution_column([spec], list_columns)
        if column is None:
            continue
        if spec.args.get("solution_list", "any") == "all":
            found.append(f"reward 'accuracy': '{column}' holds lists; all items of a list must be given, in any order")
        else:
            found.append(
                f"reward 'accuracy': '{column}' holds lists; any one item of a list is right "
                "(all are required with args: {solution_list: all})"
            )
    return found


def describe_tags(functions: Sequence[RewardSpec], texts: Iterable[str]) -> list[str]:
    """Say which rewards are for tags that no prompt asks for; for the start of a run.

    Args:
        functions: the rewards of the config, checked.
        texts: prompts, and what their template adds.
    """
    names = [spec.name for spec in functions if spec.path is None and spec.name in _OF_TAGS and not spec.args]
    if not names or any("<answer>" in text for text in texts):
        return []
    return [
        f"reward '{name}': neither the prompts nor their template ask for <think> and <answer>, so responses seldom "
        "have these tags; preprocess with --prompt-type qwen_r1, or ask for them in the prompts"
        for name in names
    ]
