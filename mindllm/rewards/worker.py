"""A reward process: loads the functions, scores one completion after another, and dies with its parent.

Started by ``pool`` as a program of its own (not forked, not spawned through ``multiprocessing``, which would import the
driver's main module with torch and ray). It talks over one inherited connection; its messages are tuples of plain data.
"""

import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from mindllm.processes import die_with_parent_thread
from mindllm.rewards.checks import RewardSpec
from mindllm.rewards.plugins import load_plugin, parameters_of
from mindllm.rewards.registry import BUILTINS


class Function(NamedTuple):
    """A reward as it is sent to a worker."""

    name: str
    path: str | None
    args: dict[str, Any]


class Completion(NamedTuple):
    """One completion as it is sent to a worker."""

    prompt: str
    completion: str
    columns: Mapping[str, Any]


# What a worker sends: READY once, then for each completion (VALUE, float or None) or (ERROR, traceback);
# or, instead of READY, (ERROR, traceback of the loading).
READY, VALUE, ERROR = "ready", "value", "error"
# The exit code after a user's function has closed the connection.
LOST_CONNECTION = 76


def as_function(spec: RewardSpec) -> Function:
    """Copy a reward of the config into plain data."""
    return Function(spec.name, spec.path, dict(spec.args))


def main(connection_fd: int, dies_with_parent_thread: bool) -> None:
    """Serve until the connection closes."""
    _die_with_parent(dies_with_parent_thread)
    for stream in (sys.stdout, sys.stderr):  # what is printed before a hang or a death must not stay in a buffer
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    connection = Connection(connection_fd)
    try:
        functions: list[Function] = connection.recv()
        try:
            scorers = [_load(function) for function in functions]
        except BaseException:
            connection.send((ERROR, _traceback()))
            return
        connection.send((READY, None))
        while True:
            which, completions = connection.recv()
            for completion in completions:
                connection.send(_outcome(scorers[which], completion))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except OSError:
        os._exit(LOST_CONNECTION)  # an ordinary end would print what it cannot close


def _die_with_parent(dies_with_parent_thread: bool) -> None:
    """Arrange to be killed, children included, when standard input (held open by the parent) ends.

    A thread waits for that end. It cannot run while C code holds the interpreter lock, so the kernel is asked as well;
    but only if the parent's starting thread is its main one, because it is that thread's end the kernel reports.
    """
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    if dies_with_parent_thread:
        die_with_parent_thread()


def _load(function: Function) -> Callable[[Completion], float | None]:
    """Return f(completion) -> score for a built-in or a user's function."""
    stand_ins: Mapping[str, str] = {}
    if function.path is None:
        builtin = BUILTINS[function.name]
        builtin.prepare()
        call, stand_ins = builtin.function, builtin.stand_ins
    else:
        call = load_plugin(function.name, function.path)
    parameters = parameters_of(call)
    wanted = None if parameters.takes_any else {*parameters.required, *parameters.optional}

    def score(completion: Completion) -> float | None:
        given: dict[str, Any] = {name: [value] for name, value in completion.columns.items()}
        for name, other in stand_ins.items():
            if name not in given and other in given:
                given[name] = given[other]
        given |= {"prompts": [completion.prompt], "completions": [completion.completion], **function.args}
        if wanted is not None:
            given = {name: value for name, value in given.items() if name in wanted}
        return checked(call(**given))

    return score


def checked(returned: Any) -> float | None:
    """Return the one value of what a reward function returned for one completion.

    Raises TypeError or ValueError when that is not a list with one finite number or None.
    """
    if hasattr(returned, "tolist"):  # an array or tensor
        returned = returned.tolist()
    if not isinstance(returned, (list, tuple)):
        raise TypeError(f"a reward function must return a list, found {type(returned).__name__}")
    if len(returned) != 1:
        raise ValueError(
            f"a reward function must return one value per completion: 1 completion, {len(returned)} values"
        )
    value = returned[0]
    if value is None:
        return None
    if hasattr(value, "item"):  # a scalar of numpy or torch
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"a reward must be a number or None, found {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("a reward must be a number that a float holds, found a larger integer") from None
    if not math.isfinite(number):
        raise ValueError(f"a reward must be finite, found {number}; return None for no opinion")
    return number


def _outcome(score: Callable[[Completion], float | None], completion: Completion) -> tuple[str, Any]:
    try:
        return VALUE, score(completion)
    except BaseException:  # SystemExit too: a user's function ends nothing but its own call
        return ERROR, _traceback()


def _traceback() -> str:
    """Format the current exception without the frames of this file."""
    error = sys.exc_info()[1]
    assert error is not None
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()
