"""Scores completions with all reward functions and sums the results."""

import logging
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean
from typing import Any, Literal, NamedTuple, Self

from mindllm.errors import UserError
from mindllm.rewards.checks import RewardSpec, labels
from mindllm.rewards.pool import Outcome, Task, WorkerPool
from mindllm.rewards.registry import BUILTINS
from mindllm.rewards.worker import Completion, as_function

logger = logging.getLogger(__name__)

OnError = Literal["fail", "zero", "drop"]


class RewardError(UserError):
    """A reward function failed, and ``on_error`` is ``fail``: the sentence, and below it the function's traceback."""


class RewardItem(NamedTuple):
    """One completion to be scored."""

    uid: Hashable
    prompt: str
    completion: str
    columns: Mapping[str, Any]  # the prompt's row of the data set


@dataclass
class RewardResult:
    """The rewards of n items, in their order."""

    total: list[float]  # [n] weighted sum over the functions with an opinion; NaN: none has one, or dropped
    per_function: dict[str, list[float | None]]  # label -> [n], before weights; None: no opinion, or failed and dropped
    dropped: list[Hashable]  # uids of items that a function failed on, with on_error "drop"
    errors: int  # failed calls, those over the time limit included
    timeouts: int  # calls over the time limit, those that count as a wrong answer included
    first_traceback: str | None

    def metrics(self) -> dict[str, float]:
        """Return the mean of each function over the items it has an opinion on, and the counts of failures."""
        opinions = {label: [v for v in values if v is not None] for label, values in self.per_function.items()}
        means = {f"reward/{label}/mean": mean(values) for label, values in opinions.items() if values}
        counts = {"errors": self.errors, "timeouts": self.timeouts, "dropped": len(self.dropped)}
        return means | {f"reward/{name}": float(count) for name, count in counts.items()}


class RewardRunner:
    """Reward functions loaded in processes of their own, which neither an exception nor a hang can take down."""

    def __init__(
        self, functions: Sequence[RewardSpec], on_error: OnError = "fail", timeout_s: float = 5.0, num_workers: int = 2
    ) -> None:
        """Start the processes and load the functions there; call ``check_rewards`` first.

        Args:
            functions: the rewards of the config.
            on_error: what a call does that raises, returns something else than one number or None, kills its process
                or exceeds the time limit: "fail" raises RewardError, "zero" counts as 0, "drop" drops the item.
            timeout_s: limit of one call, i.e. of one function on one completion.
            num_workers: number of processes.

        Raises:
            UserError: a function cannot be loaded; with its traceback.
        """
        self._labels = labels(functions)
        self._weights = [spec.weight for spec in functions]
        self._at_timeout = [BUILTINS[s.name].score_at_timeout if s.path is None else None for s in functions]
        self._on_error: OnError = on_error
        self._warned: set[str] = set()
        self._pool = WorkerPool([as_function(spec) for spec in functions], timeout_s, num_workers)

    def score(self, items: Sequence[RewardItem]) -> RewardResult:
        """Score the items; results do not depend on the number of processes.

        Raises:
            RewardError: a call failed and ``on_error`` is "fail", or no float holds a weighted sum.
        """
        completions = [Completion(item.prompt, item.completion, item.columns) for item in items]
        tasks = [Task(which, completion) for which in range(len(self._labels)) for completion in completions]
        values: list[float | None] = [None] * len(tasks)
        failures: dict[int, str] = {}
        timeouts = 0
        outcomes = self._pool.run(tasks)
        for position, outcome in outcomes:
            which, item = tasks[position].function, items[position % len(items)]
            timeouts += outcome.kind == "timeout"
            value = self._at_timeout[which] if outcome.kind == "timeout" else outcome.value
            if outcome.kind != "value" and value is None:
                failures[position] = self._describe(which, item, outcome)
                if self._on_error == "fail":
                    outcomes.close()
                    raise RewardError(failures[position])
                value = 0.0 if self._on_error == "zero" else None
            values[position] = value
        return self._result(items, values, failures, timeouts)

    def close(self) -> None:
        """End the processes."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _describe(self, which: int, item: RewardItem, outcome: Outcome) -> str:
        """Return the failure in words, and log the first one of each function."""
        label = self._labels[which]
        text = (
            f"reward '{label}' failed on {item.uid!r}, the completion {_start(item.completion)} of the prompt "
            f"{_start(item.prompt)}:\n{outcome.text}"
        )
        if self._on_error != "fail" and label not in self._warned:
            self._warned.add(label)
            logger.warning("%s\n(on_error=%s; later failures of it are only counted)", text, self._on_error)
        return text

    def _result(
        self, items: Sequence[RewardItem], values: list[float | None], failures: Mapping[int, str], timeouts: int
    ) -> RewardResult:
        n = len(items)
        columns = [values[which * n : (which + 1) * n] for which in range(len(self._labels))]  # [functions][n]
        failed_items = {position % n for position in failures} if self._on_error == "drop" else set()
        return RewardResult(
            total=[
                math.nan if i in failed_items else self._weighted([c[i] for c in columns], items[i]) for i in range(n)
            ],
            per_function=dict(zip(self._labels, columns, strict=True)),
            dropped=[items[i].uid for i in sorted(failed_items)],
            errors=len(failures),
            timeouts=timeouts,
            first_traceback=failures[min(failures)] if failures else None,
        )

    def _weighted(self, values: Sequence[float | None], item: RewardItem) -> float:
        known = [
            (weight, value, label)
            for weight, value, label in zip(self._weights, values, self._labels, strict=True)
            if value is not None
        ]
        if not known:
            return math.nan
        with suppress(OverflowError, ValueError):  # a product or a partial sum that no float holds
            if math.isfinite(total := math.fsum(weight * value for weight, value, _ in known)):
                return total
        try:
            return float(sum(Fraction(weight) * Fraction(value) for weight, value, _ in known))
        except OverflowError:
            weight, value, label = max(known, key=lambda one: abs(Fraction(one[0]) * Fraction(one[1])))
            raise RewardError(
                f"reward '{label}': {value:g} with weight {weight:g} makes the reward of {_start(item.completion)} "
                f"larger than the largest float ({sys.float_info.max:.1e}); give it a smaller weight"
            ) from None


def _start(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "...")
