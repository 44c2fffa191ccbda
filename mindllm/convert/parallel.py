"""Several processes for one conversion: each does a share, and what goes wrong in one ends all of them."""

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from mindllm.errors import UserError
from mindllm.processes import die_with_parent_thread


def run_shares(num_workers: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(0)`` to ``work(num_workers - 1)``, each in a forked process of its own; return their results in order.

    The first UserError or OSError of a worker is raised here after the others have been ended; a worker that dies
    without a word becomes a UserError.
    """
    context = multiprocessing.get_context("fork")
    workers: list[tuple[ForkProcess, Connection]] = []
    try:
        for number in range(num_workers):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_main, args=(sender, number, work), daemon=True)
            process.start()
            sender.close()
            workers.append((process, receiver))
        return _collect(workers)
    finally:
        for process, receiver in workers:
            if process.is_alive():
                process.kill()
            process.join()
            receiver.close()


def _main(sender: Connection, number: int, work: Callable[[int], Any]) -> None:
    die_with_parent_thread()
    if "torch" in sys.modules:  # a forked process cannot use the threads that its parent may have started
        sys.modules["torch"].set_num_threads(1)
    try:
        message: tuple[str, Any] = ("result", work(number))
    except UserError as error:
        message = ("user", str(error))
    except MemoryError as error:
        message = ("user", f"out of memory in one of several --workers: {error}")
    except OSError as error:
        message = ("os", (error.errno, error.strerror, error.filename))
    except KeyboardInterrupt:
        message = ("interrupted", None)
    sender.send_bytes(pickle.dumps(message))
    sender.close()
    os._exit(0)


def _collect(workers: list[tuple[ForkProcess, Connection]]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(workers):
        pending = {receiver: number for number, (_, receiver) in enumerate(workers) if number not in results}
        for ready in wait(list(pending)):
            number = pending[ready]  # type: ignore[index]  # only connections were waited for
            try:
                kind, value = pickle.loads(workers[number][1].recv_bytes())
            except EOFError:
                workers[number][0].join()
                code = workers[number][0].exitcode
                raise UserError(f"a worker process ended with exit code {code} before it was done") from None
            if kind == "user":
                raise UserError(value)
            if kind == "os":
                raise OSError(*value)
            if kind == "interrupted":
                raise KeyboardInterrupt
            results[number] = value
    return [results[number] for number in range(len(workers))]
