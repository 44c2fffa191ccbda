"""Real gloo ranks for tests: forked once from the already-imported test process, and kept for every test of a layout.

A test so pays neither imports nor rendezvous. Ranks are told what to run by reference: ``function`` is a module's own,
and its arguments can be pickled.
"""

import atexit
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from mindllm.models.builder import Layout
from mindllm.parallel import groups
from mindllm.processes import die_with_parent_thread

TIMEOUT_S = 240

_FORK = multiprocessing.get_context("fork")


def run_ranks(layout: Layout, data_parallel: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run ``function(*args)`` on every rank of the world of ``layout`` x ``data_parallel``; results by rank.

    The first rank that raises ends its world, and its traceback is the message of the AssertionError.
    """
    key = (layout, data_parallel)
    if key not in _worlds:
        _worlds[key] = World(layout, layout.model_ranks * data_parallel)
    try:
        return _worlds[key].run(function, args)
    except BaseException:
        _worlds.pop(key).close()
        raise


class World:
    """Processes that have joined one process group and wait for calls."""

    def __init__(self, layout: Layout, world_size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        init_method = f"file://{os.path.join(self._folder.name, 'store')}"
        self._ranks = []
        for rank in range(world_size):
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_serve, args=(theirs, layout, rank, world_size, init_method))
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        """Results of ``function(*args)`` by rank. Raises AssertionError for the first rank that raises or dies."""
        call = pickle.dumps((function, args))
        self._signal(signal.SIGCONT)
        for _, connection in self._ranks:
            connection.send_bytes(call)
        results: dict[int, Any] = {}
        while len(results) < len(self._ranks):
            pending = {connection: rank for rank, (_, connection) in enumerate(self._ranks) if rank not in results}
            ready = wait(list(pending), timeout=TIMEOUT_S)
            assert ready, f"no rank answered within {TIMEOUT_S} s; done: {sorted(results)}"
            for connection in ready:
                rank = pending[connection]
                try:
                    succeeded, value = pickle.loads(connection.recv_bytes())
                except EOFError:
                    self._ranks[rank][0].join()
                    raise AssertionError(f"rank {rank} died with exit code {self._ranks[rank][0].exitcode}") from None
                assert succeeded, value
                results[rank] = value
        # Idle ranks cost time: each of gloo's sixty groups has a thread that wakes a hundred times a second.
        self._signal(signal.SIGSTOP)
        return [results[rank] for rank in range(len(self._ranks))]

    def _signal(self, number: signal.Signals) -> None:
        for process, _ in self._ranks:
            os.kill(process.pid, number)

    def close(self, idle: bool = False) -> None:
        """Kill the processes, or let those that are idle end by themselves, which saves what coverage has counted."""
        if idle:
            self._signal(signal.SIGCONT)
            for _, connection in self._ranks:
                connection.send_bytes(pickle.dumps(None))
        for process, connection in self._ranks:
            process.join(TIMEOUT_S if idle else 0)
            process.kill()
            process.join()
            connection.close()
        self._folder.cleanup()


_worlds: dict[tuple[Layout, int], World] = {}


@atexit.register
def _close_worlds() -> None:
    while _worlds:
        _worlds.popitem()[1].close(idle=True)


def _serve(connection: Connection, layout: Layout, rank: int, world_size: int, init_method: str) -> None:
    """Body of a rank: join, then answer calls until the test process ends."""
    atexit.unregister(_close_worlds)  # the worlds are the parent's
    die_with_parent_thread()
    try:
        groups.initialize(layout, rank, world_size, init_method)
        while (call := pickle.loads(connection.recv_bytes())) is not None:
            function, args = call
            connection.send_bytes(pickle.dumps((True, function(*args))))
            del call, function, args
    except EOFError:
        pass
    except BaseException:
        connection.send_bytes(pickle.dumps((False, f"rank {rank}:\n{traceback.format_exc()}")))
    finally:
        os._exit(0)
