"""Encoding in this process or in a pool of spawned ones; results always come in order."""

import multiprocessing as mp
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

from mindllm.data.handlers import Handler, HandlerOptions, build_handler
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError

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
    with ProcessPoolExecutor(num_workers, mp.get_context("spawn"), _start_worker, (job,)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(_run, work, task))
                if len(waiting) >= 4 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError("a worker process was killed, most likely for memory; use fewer --workers") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(job: Job) -> None:
    global _handler
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _handler = build_handler(job.options, job.spec)


def _exit_with_parent() -> None:
    """A killed parent cannot stop its workers, and they would wait for tasks for ever."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(work: Callable[[Handler, Any], Result], task: Any) -> Result:
    assert _handler is not None
    return work(_handler, task)
