"""The three programs: `mindllm preprocess`, `mindllm convert` and `mindllm posttrain`, and the scripts of a checkout.

Each is imported only when it is asked for, so that every `--help` answers at once.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from mindllm import __version__
from mindllm.errors import did_you_mean


def preprocess(arguments: Sequence[str]) -> int:
    """Run preprocess_data.py with ``arguments``; returns the exit status."""
    if not any(argument.startswith("--handler-file") for argument in arguments):
        # transformers imports torch where it finds it. That takes seconds, and tokenizers need nothing of it.
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # of which one says that torch was not found
    return _run("mindllm.preprocess.cli", arguments)


def convert(arguments: Sequence[str]) -> int:
    """Run convert_ckpt.py with ``arguments``; returns the exit status."""
    return _run("mindllm.convert.cli", arguments)


def posttrain(arguments: Sequence[str]) -> int:
    """Run posttrain_gpt.py with ``arguments``; returns the exit status."""
    return _run("mindllm.posttrain", arguments)


PROGRAMS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "preprocess": (preprocess, "turn json, jsonl and parquet files into Megatron indexed files"),
    "convert": (convert, "convert models between Hugging Face safetensors and megatron-core checkpoints"),
    "posttrain": (posttrain, "run a post-training stage from a YAML configuration"),
}
"""Command -> (program, what it does)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names with the others; returns the exit status."""
    command, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in PROGRAMS:
        return PROGRAMS[command][0](rest)
    if command == "--version":
        print(f"mindllm {__version__}")
        return 0
    if command in ("-h", "--help"):
        print("usage: mindllm COMMAND ...    (mindllm COMMAND --help lists its arguments)\n")
        print("\n".join(f"  {name:<11} {meaning}" for name, (_, meaning) in PROGRAMS.items()))
        return 0
    print(
        f"error: unknown command {command}; allowed: {', '.join(PROGRAMS)}{did_you_mean(command, PROGRAMS)}",
        file=sys.stderr,
    )
    return 2


def _run(module: str, arguments: Sequence[str]) -> int:
    # A scheduler's SIGTERM ends a program as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status: int = import_module(module).main(list(arguments))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "mindllm") or package in sys.modules:
            raise
        print(
            f"error: {sys.executable} has no package that provides {error.name}; "
            "'python -m pip install -c constraints.txt -e .' in mindllm's checkout installs what is needed",
            file=sys.stderr,
        )
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
