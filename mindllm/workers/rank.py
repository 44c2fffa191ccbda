"""One process of a worker group: it joins a layout once and hosts the roles that share it."""

import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from mindllm.device import PeakMemory

from mindllm.models.builder import Layout

_REPORT_INTERVAL_S = 1.0


class RankProcess:
    """Hosts role workers by name; both executors drive it, through Ray or by plain calls."""

    def __init__(self, watcher: Callable[[int], None] | None = None) -> None:
        """``watcher(done)`` is told how far a long call is, where it is in the same process."""
        self._roles: dict[str, Any] = {}
        self._watcher = watcher
        self.calls = 0
        self._peaks: dict[tuple[str, str], int] = {}

    def describe(self) -> dict[str, Any]:
        """Where this process runs: host address, pid, and a port that was free a moment ago."""
        from ray.util import get_node_ip_address  # only Ray asks: an inline rank needs no rendezvous address

        host = get_node_ip_address()
        with socket.socket() as probe:
            probe.bind(("", 0))
            return {"host": host, "pid": os.getpid(), "port": probe.getsockname()[1]}

    def log_to(self, path: Path) -> None:
        """Send this process's output, and a fault's stack, to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, sys.stdout.fileno())
        os.dup2(descriptor, sys.stderr.fileno())
        faulthandler.enable(file=sys.stderr)
        _announce_sigterm()

    def report_under(self, key: str) -> None:
        """From now on leave how far a call is under ``key`` in Ray's key-value store: ``<number of the call> <done>``.

        A rank that is in a call answers no other, so it cannot be asked.
        """
        self._watcher = _StoredReport(key, self)

    def join(self, layout: Layout, rank: int, world_size: int, init_method: str, local_rank: int) -> Any:
        """Enter the group and return this rank's coordinates."""
        from mindllm.parallel import groups

        groups.initialize(layout, rank, world_size, init_method, local_rank)
        return groups.coordinates()

    def create(self, role: str, arguments: tuple[Any, ...]) -> None:
        """Build the worker of ``role`` in this process."""
        with PeakMemory() as memory:
            self._roles[role] = _worker_class(role)(*arguments)
        self._roles[role].report = self._watcher
        self._keep_peak(role, "load", memory)

    def call(self, role: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Run ``method`` of the role's worker; references that ``Ranks.put`` made become their values."""
        self.calls += 1
        with PeakMemory() as memory:
            answer = getattr(self._roles[role], method)(*map(_resolve, arguments))
        self._keep_peak(role, method, memory)
        return answer

    def take_peaks(self) -> dict[tuple[str, str], int]:
        """Peak memory in bytes by (role, method) over the calls since this was last asked; ``load`` is ``create``."""
        taken, self._peaks = self._peaks, {}
        return taken

    def _keep_peak(self, role: str, method: str, memory: PeakMemory) -> None:
        self._peaks[role, method] = max(memory.bytes, self._peaks.get((role, method), 0))


class _StoredReport:
    """Writes how far a call is to Ray's key-value store, at most once a second."""

    def __init__(self, key: str, process: RankProcess) -> None:
        self._key, self._process = key, process
        self._written = time.monotonic()

    def __call__(self, done: int) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        now = time.monotonic()
        if now - self._written < _REPORT_INTERVAL_S:
            return
        self._written = now
        with suppress(Exception):  # what is shown is not worth a run
            _internal_kv_put(self._key, f"{self._process.calls} {done}")


def _announce_sigterm() -> None:
    """Leave a line in the log before SIGTERM's earlier handler ends the process: a death is told from its log."""
    earlier = signal.getsignal(signal.SIGTERM)

    def announce(number: int, frame: Any) -> None:
        print("Terminated by SIGTERM", file=sys.stderr, flush=True)
        if callable(earlier):
            earlier(number, frame)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, announce)


def _resolve(argument: Any) -> Any:
    if type(argument).__name__ != "ObjectRef":
        return argument
    import ray

    return ray.get(argument)


# Role -> module and class of its worker; imported in the rank, where megatron is loaded anyway.
_WORKERS = {
    "actor_rollout": ("actor_rollout", "ActorRolloutWorker"),
    "rollout": ("rollout", "RolloutWorker"),
    "ref": ("ref", "RefWorker"),
    "critic": ("critic", "CriticWorker"),
    "reward": ("reward", "RewardWorker"),
    "trained_reward": ("reward", "TrainedRewardWorker"),
}


def _worker_class(role: str) -> Any:
    module, name = _WORKERS[role]
    return getattr(import_module(f"mindllm.workers.{module}"), name)
