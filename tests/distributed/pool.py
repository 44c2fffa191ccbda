"""Real gloo ranks for tests: fork the already-imported test process once per rank, so that a test pays no imports."""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from mindllm.models.builder import Layout
from mindllm.parallel import groups

TIMEOUT_S = 240


def run_ranks(layout: Layout, data_parallel: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run ``function(*args)`` on every rank of a fresh world of ``layout`` x ``data_parallel``; results by rank.

    The first rank that raises ends the others, and its traceback is the message of the AssertionError.
    """
    world_size = layout.model_ranks * data_parallel
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{os.path.join(folder, 'store')}"
        ranks = []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            target_args = (sender, layout, rank, world_size, init_method, function, args)
            process = context.Process(target=_rank_main, args=target_args)
            process.start()
            sender.close()
            ranks.append((process, receiver))
        return _collect(ranks)


def _rank_main(
    sender: Any, layout: Layout, rank: int, world_size: int, init_method: str, function: Callable[..., Any], args: Any
) -> None:
    try:
        groups.initialize(layout, rank, world_size, init_method)
        sender.send_bytes(pickle.dumps((True, function(*args))))
    except BaseException:
        sender.send_bytes(pickle.dumps((False, f"rank {rank}:\n{traceback.format_exc()}")))
    finally:
        sender.close()
        os._exit(0)


def _collect(ranks: list[Any]) -> list[Any]:
    results: dict[int, Any] = {}
    try:
        while len(results) < len(ranks):
            pending = [receiver for number, (_, receiver) in enumerate(ranks) if number not in results]
            ready = wait(pending, timeout=TIMEOUT_S)
            assert ready, f"no rank answered within {TIMEOUT_S} s; done: {sorted(results)}"
            for number, (process, receiver) in enumerate(ranks):
                if receiver not in ready:
                    continue
                try:
                    succeeded, value = pickle.loads(receiver.recv_bytes())
                except EOFError:
                    process.join()
                    raise AssertionError(f"rank {number} died with exit code {process.exitcode}") from None
                assert succeeded, value
                results[number] = value
    finally:
        for process, _ in ranks:
            if process.is_alive() and len(results) < len(ranks):
                process.kill()
            process.join()
    return [results[number] for number in range(len(ranks))]
