"""Processes that score completions: a time limit for each, and a new process for one that hangs or dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal, NamedTuple, Self

from mindllm.errors import UserError
from mindllm.rewards.output import Output
from mindllm.rewards.worker import LOST_CONNECTION, READY, VALUE, Completion, Function

_START_TIMEOUT_S = 120.0  # a user's file may import much
_MAX_CHUNK = 64  # completions sent to a worker at once
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
# -P and an explicit path: the current folder must not shadow the standard library.
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_PACKAGE_PARENT!r}); "
    "from mindllm.rewards.worker import main; main(int(sys.argv[1]), sys.argv[2] == '1')"
)


class Task(NamedTuple):
    """One completion to be scored by one function."""

    function: int  # position in the pool's functions
    completion: Completion


class Outcome(NamedTuple):
    """What became of a task: a value (float, or None for no opinion), or a failure with its text."""

    kind: Literal["value", "error", "timeout"]
    value: float | None = None
    text: str = ""


class _Chunk(NamedTuple):
    function: int
    tasks: deque[int]  # positions of the tasks that have no outcome yet, in order


class _Process:
    """A worker process and what it is doing."""

    def __init__(self, functions: Sequence[Function], shown: int = 0) -> None:
        """Start it; ``shown`` bytes of what its predecessors printed are on the run's output."""
        ours, theirs = Pipe()
        is_main_thread = threading.current_thread() is threading.main_thread()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(int(is_main_thread))],
            stdin=subprocess.PIPE,  # never written to: its end tells the worker that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # its children can be killed with it, and Ctrl-C reaches only the driver
        )
        theirs.close()
        assert self._process.stdout is not None
        self.output = Output(self._process.stdout.fileno(), shown)
        self.connection: Connection = ours
        self.is_ready = False
        self.chunk: _Chunk | None = None
        self.deadline = time.monotonic() + _START_TIMEOUT_S
        self.connection.send(list(functions))

    @property
    def is_waited_for(self) -> bool:
        return not self.is_ready or self.chunk is not None

    def give(self, chunk: _Chunk, tasks: Sequence[Task], timeout_s: float) -> None:
        self.chunk = chunk
        self.deadline = time.monotonic() + timeout_s
        self.connection.send((chunk.function, [tasks[position].completion for position in chunk.tasks]))

    def exit_text(self) -> str:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = LOST_CONNECTION
        self.output.finish()
        if code == LOST_CONNECTION:
            return "lost its connection: a reward must not close files that it has not opened"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        self.output.finish()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


class WorkerPool:
    """A fixed number of worker processes which all have the same functions loaded. For use by one thread."""

    def __init__(self, functions: Sequence[Function], timeout_s: float, num_workers: int) -> None:
        """Start the processes and wait until they have loaded the functions.

        Raises UserError, with the traceback, when a function cannot be loaded.
        """
        self._functions = functions
        self._timeout_s = timeout_s
        self._workers = [_Process(functions) for _ in range(num_workers)]
        try:
            while not all(worker.is_ready for worker in self._workers):
                self._advance(deque())
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """Yield (position of the task, its outcome) for all tasks, as they come.

        When the caller stops early, the processes that are at work are replaced.
        """
        pending = self._chunks(tasks)
        try:
            while pending or any(worker.chunk for worker in self._workers):
                self._hand_out(pending, tasks)
                yield from self._advance(pending)
        finally:
            for number, worker in enumerate(self._workers):
                if worker.chunk:
                    self._replace(number)

    def close(self) -> None:
        """Kill all processes."""
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _chunks(self, tasks: Sequence[Task]) -> deque[_Chunk]:
        """Cut the tasks into runs of the same function, small enough that the workers end together."""
        size = max(1, min(_MAX_CHUNK, len(tasks) // (4 * len(self._workers))))
        chunks: deque[_Chunk] = deque()
        for position, task in enumerate(tasks):
            if not chunks or chunks[-1].function != task.function or len(chunks[-1].tasks) >= size:
                chunks.append(_Chunk(task.function, deque()))
            chunks[-1].tasks.append(position)
        return chunks

    def _hand_out(self, pending: deque[_Chunk], tasks: Sequence[Task]) -> None:
        for number, worker in enumerate(self._workers):
            if not pending or worker.is_waited_for:
                continue
            chunk = pending.popleft()
            try:
                worker.give(chunk, tasks, self._timeout_s)
            except OSError:  # it died while idle, through no fault of this chunk
                worker.chunk = None
                pending.appendleft(chunk)
                self._replace(number)

    def _advance(self, pending: deque[_Chunk]) -> list[tuple[int, Outcome]]:
        """Wait for the next message, death or deadline of any process, and return the outcomes it gives."""
        busy = [worker for worker in self._workers if worker.is_waited_for]
        until = min(worker.deadline for worker in busy)
        wait([worker.connection for worker in busy], max(0.0, until - time.monotonic()))
        outcomes: list[tuple[int, Outcome]] = []
        for number, worker in enumerate(self._workers):
            if not worker.is_waited_for:
                continue
            failure = self._receive(worker, outcomes)
            if failure is not None:
                self._fail(number, failure, pending, outcomes)
        return outcomes

    def _receive(self, worker: _Process, outcomes: list[tuple[int, Outcome]]) -> Outcome | None:
        """Take in what a process has sent; return a failure if it has died or is overdue."""
        try:
            while worker.is_waited_for and worker.connection.poll():
                kind, content = worker.connection.recv()
                if worker.chunk is not None:
                    outcome = Outcome("value", value=content) if kind == VALUE else Outcome("error", text=content)
                    outcomes.append((worker.chunk.tasks.popleft(), outcome))
                    worker.deadline = time.monotonic() + self._timeout_s
                    worker.chunk = worker.chunk if worker.chunk.tasks else None
                elif kind == READY:
                    worker.is_ready = True
                else:
                    raise UserError(f"a reward function could not be loaded:\n{content}")
        except (EOFError, OSError):
            return Outcome("error", text=f"the reward process {worker.exit_text()}{worker.output.last_lines()}")
        if worker.is_waited_for and time.monotonic() > worker.deadline:
            limit = self._timeout_s if worker.is_ready else _START_TIMEOUT_S
            return Outcome("timeout", text=f"no result within {limit:g} s{worker.output.last_lines()}")
        return None

    def _fail(self, number: int, failure: Outcome, pending: deque[_Chunk], outcomes: list[tuple[int, Outcome]]) -> None:
        """Blame the task at hand, put the rest of its chunk back, and replace the process."""
        chunk = self._workers[number].chunk
        if chunk is None:
            raise UserError(f"a reward process could not start: {failure.text}")
        outcomes.append((chunk.tasks.popleft(), failure))
        if chunk.tasks:
            pending.appendleft(chunk)
        self._replace(number)

    def _replace(self, number: int) -> None:
        self._workers[number].kill()
        self._workers[number] = _Process(self._functions, self._workers[number].output.shown)
