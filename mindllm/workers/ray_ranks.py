"""Ranks as Ray actors on a placement group; their failures become one report."""

import os
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mindllm.errors import UserError, WorkerError, describe_os_error
from mindllm.models.builder import Layout
from mindllm.parallel.groups import Coordinates
from mindllm.workers.rank import RankProcess

REPOSITORY = Path(__file__).resolve().parents[2]
# Ranks compute on their own threads or GPUs; a token share lets any number of them fit on a small machine.
_CPUS_PER_RANK = 0.01
# After one rank fails its peers' collectives fail too: wait this long for the failure that explains the others.
_GRACE_S = 3.0
_REPORT_INTERVAL_S = 1.0
_LOG_TAIL_LINES = 20
_FORWARDED = ("OMP_NUM_THREADS", "MINDLLM_DEVICE", "CUDA_DEVICE_MAX_CONNECTIONS")


class RayCluster:
    """A connection to Ray: a local one started here, or the cluster at ``RAY_ADDRESS``."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
        environment = {"OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": python_path()}
        address = os.environ.get("RAY_ADDRESS", "local")
        is_local = address == "local"
        if is_local:
            # What is started here inherits it; with a runtime_env, Ray would start others than the processes it has
            # ready, which takes seconds.
            os.environ.update(environment)
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=address,
                include_dashboard=False if is_local else None,
                log_to_driver=False,
                logging_level="error",
                runtime_env=None if is_local else {"env_vars": environment},
            )
        except (ConnectionError, RayError) as error:
            raise UserError(f"RAY_ADDRESS={address}: cannot join this Ray cluster ({error})") from error
        except OSError as error:  # most often a TMPDIR so long that the paths of Ray's sockets do not fit
            directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
            raise UserError(
                f"TMPDIR: Ray cannot put its files into {directory} ({error}); set RAY_TMPDIR to a short path, as /tmp"
            ) from error
        if callable(on_sigterm):  # Ray has put its own in place, which prints a stack and ends without cleaning up
            signal.signal(signal.SIGTERM, on_sigterm)

    @property
    def has_gpus(self) -> bool:
        """Whether the cluster offers GPUs to place ranks on."""
        return ray.cluster_resources().get("GPU", 0) > 0

    def close(self) -> None:
        """Leave the cluster; a local one ends."""
        ray.shutdown()


def python_path() -> str:
    """A PYTHONPATH with which other processes import from the places that this one does, in the same order.

    It holds the folder of this package and this process's own PYTHONPATH, of which a Megatron-LM may be part.
    """
    given = os.environ.get("PYTHONPATH")
    wanted = [str(REPOSITORY), *map(os.path.realpath, given.split(os.pathsep) if given else [])]
    in_use = [path for path in map(os.path.realpath, sys.path) if path in wanted]
    return os.pathsep.join(dict.fromkeys([*in_use, *wanted]))


def resource_table() -> str:
    """Alive nodes with what they have, a line each."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    lines = [
        f"  {node['NodeManagerAddress']:<16} CPU {node['Resources'].get('CPU', 0):g}"
        f"  GPU {node['Resources'].get('GPU', 0):g}"
        for node in nodes
    ]
    return "\n".join(lines)


class RayRanks:
    """The processes of one worker group."""

    def __init__(
        self,
        name: str,
        per_node: list[int],
        layout: Layout,
        use_gpus: bool,
        log_dir: Path,
        resource_timeout_s: float,
        call_timeout_s: float,
        watcher: Callable[[int], None] | None = None,
    ) -> None:
        """Place, start and connect the processes.

        Args:
            name: of the group, in reports and log files.
            per_node: processes on each node; a single entry may be spread by Ray as it likes.
            layout: of the models they will host.
            use_gpus: give each process one GPU.
            log_dir: each process writes ``<name>_rank<n>.log`` here.
            resource_timeout_s: longest wait for the placement group.
            call_timeout_s: longest time of one call.
            watcher: told about once a second how far a long call is, over all replicas.

        Raises:
            UserError: the cluster cannot place the group in time.
        """
        self.name, self._timeout_s, self._log_dir = name, call_timeout_s, log_dir
        self._lock, self._calls = threading.Lock(), 0
        self._watcher, self._reports = watcher, f"mindllm/{uuid.uuid4().hex}"
        self.coordinates: list[Coordinates] = []
        resources = {"CPU": _CPUS_PER_RANK, **({"GPU": 1.0} if use_gpus else {})}
        self._group = _place(name, per_node, resources, resource_timeout_s)
        bundles = [index for index, count in enumerate(_bundles(per_node)) for _ in range(count)]
        self._actors = [self._start(bundle, resources) for bundle in bundles]
        self._pids: list[int] = []
        places = self.run("describe", [()] * len(bundles))
        self._pids = [place["pid"] for place in places]
        self.run("log_to", [(self._log(rank),) for rank in range(len(bundles))])
        self.run("report_under", [(f"{self._reports}/{rank}",) for rank in range(len(bundles))])
        init_method = f"tcp://{places[0]['host']}:{places[0]['port']}"
        local = _local_ranks([place["host"] for place in places])
        world = len(bundles)
        self.coordinates = self.run(
            "join", [(layout, rank, world, init_method, 0 if use_gpus else local[rank]) for rank in range(world)]
        )

    def _start(self, bundle: int, resources: dict[str, float]) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        remote = ray.remote(RankProcess).options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            scheduling_strategy=strategy,
            max_restarts=0,
        )
        return remote.remote()

    def _log(self, rank: int) -> Path:
        return self._log_dir / f"{self.name}_rank{rank}.log"

    def run(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """See ``Ranks``."""
        # All ranks must see the calls of concurrent callers in one order, or their collectives would cross.
        with self._lock:
            calls = [getattr(actor, method).remote(*args) for actor, args in zip(self._actors, arguments, strict=True)]
            self._calls += method == "call"
            number = self._calls
        ranks = {call: rank for rank, call in enumerate(calls)}
        pending, failures, deadline = list(calls), {}, time.monotonic() + self._timeout_s
        while pending:
            left = max(0.0, deadline - time.monotonic())
            done, pending = ray.wait(pending, timeout=min(left, _REPORT_INTERVAL_S))
            if not done and left > _REPORT_INTERVAL_S:
                self._tell_watcher(number)
                continue
            if not done:
                break
            try:
                ray.get(done)
            except (RayTaskError, RayActorError) as error:
                if not failures:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
                failures[ranks[done[0]]] = error
        if failures:
            raise told_by_ranks(self.name, failures) or WorkerError(self._report(failures))
        if pending:
            late = ", ".join(str(ranks[call]) for call in pending)
            raise WorkerError(
                f"{self.name}: rank {late} did not answer '{method}' within {self._timeout_s:g} s "
                f"(training.worker_timeout_s)\n{self._tail(ranks[pending[0]])}"
            )
        return ray.get(calls)

    def _tell_watcher(self, number: int) -> None:
        """Add up what the ranks that answer for their replicas have reported of this call."""
        if self._watcher is None:
            return
        done = 0
        for rank, place in enumerate(self.coordinates):
            report = _internal_kv_get(f"{self._reports}/{rank}") if place.is_collector else None
            if report is not None and int(report.split()[0]) == number:
                done += int(report.split()[1])
        if done:
            self._watcher(done)

    def put(self, value: Any) -> Any:
        """A reference into Ray's object store, which ``RankProcess.call`` resolves."""
        return ray.put(value)

    def _report(self, failures: dict[int, RayError]) -> str:
        """The failure that explains the others: a death before an exception, an exception before a lost connection."""
        dead = [rank for rank, error in failures.items() if isinstance(error, RayActorError)]
        if dead:
            rank = dead[0]
            pid = self._pids[rank] if rank < len(self._pids) else "unknown"
            return (
                f"{self.name} rank {rank} (pid {pid}) was ended by {self._signal(rank)}\n"
                f"last lines of {self._log(rank)}:\n{self._tail(rank)}"
            )
        rank = next((r for r, error in failures.items() if "onnection" not in str(error)), next(iter(failures)))
        return f"{self.name} rank {rank} failed:\n{_own_traceback(failures[rank])}"

    def _signal(self, rank: int) -> str:
        """A fault's handler leaves its name in the log; the one signal that leaves no trace is SIGKILL."""
        tail = self._tail(rank)
        for marker, name in _FAULT_MARKERS.items():
            if marker in tail:
                return f"signal {name}"
        return "signal 9 (SIGKILL: kill -9, or the kernel out of memory)"

    def _tail(self, rank: int) -> str:
        try:
            lines = self._log(rank).read_text(errors="replace").splitlines()
        except OSError:
            return "  (no log on this machine)"
        return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:]) or "  (empty)"

    def close(self) -> None:
        """Kill the processes, whatever they are doing, and give the resources back."""
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)
        _internal_kv_del(self._reports, del_by_prefix=True)


_FAULT_MARKERS = {
    "Segmentation fault": "11 (SIGSEGV)",
    "Fatal Python error: Aborted": "6 (SIGABRT)",
    "Bus error": "7 (SIGBUS)",
    "Floating point exception": "8 (SIGFPE)",
    "Terminated by SIGTERM": "15 (SIGTERM)",
}


def _bundles(per_node: list[int]) -> list[int]:
    """Ranks per bundle: one bundle a node where nodes are named, one a rank where Ray may choose."""
    return per_node if len(per_node) > 1 else [1] * per_node[0]


def _place(name: str, per_node: list[int], resources: dict[str, float], timeout_s: float) -> Any:
    bundles = [{key: amount * count for key, amount in resources.items()} for count in _bundles(per_node)]
    group = placement_group(bundles, strategy="STRICT_SPREAD" if len(per_node) > 1 else "PACK")
    try:
        ray.get(group.ready(), timeout=timeout_s)
    except GetTimeoutError:
        remove_placement_group(group)
        kind = "GPU" if "GPU" in resources else "CPU"
        raise UserError(
            f"resource_pool.{name}: {per_node} processes were not placed within {timeout_s:g} s "
            f"(training.resource_timeout_s); each needs {resources[kind]:g} {kind}, the cluster has\n{resource_table()}"
        ) from None
    return group


def _local_ranks(hosts: list[str]) -> list[int]:
    """Number of each process among those of its host."""
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


def told_by_ranks(name: str, failures: dict[int, RayError]) -> UserError | None:
    """A mistake or a refusal of the operating system, as on a full disk, that a rank has told, if no rank has died."""
    causes = [error.cause for error in failures.values() if isinstance(error, RayTaskError)]
    if len(causes) < len(failures):
        return None
    mistakes = [cause for cause in causes if isinstance(cause, UserError)]
    refused = [cause for cause in causes if isinstance(cause, OSError) and cause.filename is not None]
    if not mistakes and not refused:
        return None
    return mistakes[0] if mistakes else UserError(f"{name}: {describe_os_error(refused[0])}")


def _own_traceback(error: RayError) -> str:
    """The worker's traceback as Python prints it.

    Ray colours the first line, puts the call's name there, and leaves the underlining of frames it hides.
    """
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    header = "Traceback (most recent call last):"
    return re.sub(r"^ray::\S+\(\) \(pid=.*(\n[ ~^]+$)*", header, text, flags=re.MULTILINE)
