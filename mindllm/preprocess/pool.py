"""Encoding in this process or in a pool of spawned ones; results always come in order."""

import multiprocessing as mp
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Handler, HandlerOptions, build_handler

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """All a process needs to encode rows."""

    options: HandlerOptions
    spec: TokenizerSpec


_handler: Handler | None = None  # of this worker process, set once when it starts


def map_in_order(
    work: Callable[[Handler, Task], Result], tasks: Iterable[Task], job: Job, num_workers: int
) -> Iterator[Result]:
    """Yield `work(handler, task)` for each task, in order, with a bounded number of tasks under way.

    Raises:
        UserError: a task's own, or a worker process died.
    """
    # One process is one thread: --workers is the only knob, and forked Rust threads would be a hazard.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if num_workers == 1:
        handler = build_handler(job.options, job.spec)
        for task in tasks:
            yield work(handler, task)
        return
    context = mp.get_context("spawn")
    listening, lifeline = context.Pipe(duplex=False)
    with ProcessPoolExecutor(num_workers, context, _start_worker, (job, listening)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(_run, work, task))
                if len(waiting) >= 4 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            pool.shutdown(wait=True)  # all is done: let workers end in their own way, not by the lifeline
        except BrokenProcessPool as error:
            raise UserError("a worker process was killed, most likely for memory; use fewer --workers") from error
        finally:
            lifeline.close()
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(job: Job, listening: Connection) -> None:
    global _handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and cleans up
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_exit_with_lifeline, args=(listening,), daemon=True).start()
    _handler = build_handler(job.options, job.spec)


def _exit_with_lifeline(listening: Connection) -> None:
    """Exit when the parent closes its end or dies: a failed run stops at once, and a killed one leaves no workers."""
    wait([listening])
    os._exit(1)


def _run(work: Callable[[Handler, Any], Result], task: Any) -> Result:
    assert _handler is not None
    return work(_handler, task)
