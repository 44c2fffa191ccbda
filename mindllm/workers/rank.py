"""One process of a worker group: it joins a layout once and hosts the roles that share it."""

import faulthandler
import os
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mindllm.models.builder import Layout


class RankProcess:
    """Hosts role workers by name; both executors drive it, through Ray or by plain calls."""

    def __init__(self) -> None:
        self._roles: dict[str, Any] = {}

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

    def join(self, layout: Layout, rank: int, world_size: int, init_method: str, local_rank: int) -> Any:
        """Enter the group and return this rank's coordinates."""
        from mindllm.parallel import groups

        groups.initialize(layout, rank, world_size, init_method, local_rank)
        return groups.coordinates()

    def create(self, role: str, arguments: tuple[Any, ...]) -> None:
        """Build the worker of ``role`` in this process."""
        self._roles[role] = _worker_class(role)(*arguments)

    def call(self, role: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Run ``method`` of the role's worker; references that ``Ranks.put`` made become their values."""
        return getattr(self._roles[role], method)(*map(_resolve, arguments))


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
