"""Worker groups: processes of one layout, the roles in them, and the two executors that run them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from mindllm.models.builder import Layout
from mindllm.parallel.groups import Coordinates, shutdown
from mindllm.workers.rank import RankProcess


class Ranks(Protocol):
    """The processes of one group, however they are run."""

    coordinates: list[Coordinates]

    def run(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call ``RankProcess.method`` on every rank, each with its own arguments; wait and return all answers.

        Raises:
            WorkerError: a rank failed, died or did not answer in time.
        """

    def put(self, value: Any) -> Any:
        """See ``WorkerGroup.put``."""

    def close(self) -> None:
        """End the processes."""


class InlineRanks:
    """One rank in the driver's own process: for a debugger, quick tests and a single GPU."""

    def __init__(self, layout: Layout, scratch: Path, watcher: Callable[[int], None] | None = None) -> None:
        """
        Args:
            layout: of one rank.
            scratch: an existing directory for the rendezvous file.
            watcher: told how far a long call is.
        """
        self._rank, self._lock = RankProcess(watcher), threading.Lock()
        store = scratch / "rendezvous"
        store.unlink(missing_ok=True)
        self.coordinates = [self._rank.join(layout, 0, 1, f"file://{store}", 0)]

    def run(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """See ``Ranks``; exceptions pass through as they are. Concurrent callers take turns."""
        with self._lock:
            return [getattr(self._rank, method)(*arguments[0])]

    def put(self, value: Any) -> Any:
        """The value itself: there is no other process."""
        return value

    def close(self) -> None:
        """Leave the process group."""
        shutdown()


class WorkerGroup:
    """One role on a group of ranks: one call goes to every rank, one answer comes from each replica."""

    def __init__(self, ranks: Ranks, role: str, arguments: tuple[Any, ...]) -> None:
        """Build the role's worker on every rank with the same ``arguments``."""
        self._ranks, self.role = ranks, role
        self.data_parallel = ranks.coordinates[0].data_size
        self._collectors = sorted(
            (place.data_rank, rank) for rank, place in enumerate(ranks.coordinates) if place.is_collector
        )
        ranks.run("create", [(role, arguments)] * len(ranks.coordinates))

    def call(self, method: str, shares: list[Any], *common: Any) -> list[Any]:
        """Give every rank its replica's share and the common arguments; answers by data-parallel rank."""
        arguments = [(self.role, method, (shares[place.data_rank], *common)) for place in self._ranks.coordinates]
        answers = self._ranks.run("call", arguments)
        return [answers[rank] for _, rank in self._collectors]

    def call_ranks(self, method: str, *common: Any) -> list[Any]:
        """The same call on every rank; all answers by rank."""
        return self._ranks.run("call", [(self.role, method, common)] * len(self._ranks.coordinates))

    def call_all(self, method: str, *common: Any) -> None:
        """The same call on every rank, for its effect."""
        self.call_ranks(method, *common)

    def put(self, value: Any) -> Any:
        """Make a large argument available to all ranks at the cost of one copy; pass on what is returned."""
        return self._ranks.put(value)


def concurrently(*tasks: Callable[[], Any]) -> list[Any]:
    """Run calls on different worker groups side by side; groups that share ranks take turns there.

    Returns:
        The results in the order of ``tasks``.

    Raises:
        Exception: that of the first task, in their order, that failed; the others have ended by then.
    """
    with ThreadPoolExecutor(max_workers=len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
    return [future.result() for future in futures]
