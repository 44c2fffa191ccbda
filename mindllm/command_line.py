"""What the command lines of the three entry scripts have in common."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mindllm.errors import UserError, describe_os_error, did_you_mean, naming_file
from mindllm.paths import expanded_path


def positive(text: str) -> int:
    """Type of a flag that counts something: a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def seed(text: str) -> int:
    """Type of a seed: a whole number from 0 to 2**63 - 1."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**63 - 1")
    return int(text)


def program(script: str, command: str) -> str:
    """How this program was called: ``mindllm COMMAND`` where it is installed, ``python SCRIPT`` in a checkout."""
    called = Path(sys.argv[0])
    return f"mindllm {command}" if called.name == "mindllm" or called.parent.name == "mindllm" else f"python {script}"


def path(text: str) -> str:
    """Type of a file or directory: ``--flag=~/x`` is not expanded by a shell, so it is here."""
    try:
        return expanded_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def say(line: str) -> None:
    """Print a line at once. Raises OSError that names standard output, where that is full or nobody reads it."""
    with naming_file("standard output"):
        print(line, flush=True)


def report_os_error(error: OSError) -> int:
    """Print one sentence on what the operating system refused; returns the exit status."""
    print(f"error: {describe_os_error(error)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter would complain of it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2


def open_standard_output() -> None:
    """Let what a command prints be dropped where it was started with a closed standard output."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  to the end of the process


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, as a UserError, and takes no abbreviations of flags."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def check_flags(self, arguments: Sequence[str], known_elsewhere: Callable[[str], str | None]) -> None:
        """Raise UserError for an unknown flag, before one that is missing for that reason is asked for.

        ``known_elsewhere`` says what to do instead of a flag of another toolkit's; None for any other.
        """
        known = [flag for action in self._actions for flag in action.option_strings]
        for argument in arguments:
            flag = argument.split("=")[0]
            if flag.startswith("--") and flag != "--" and flag not in known:
                answer = known_elsewhere(flag)
                if answer is not None:
                    raise UserError(f"unknown argument {flag}: {answer}")
                raise UserError(f"unknown argument {flag}; --help lists all{did_you_mean(flag, known)}")

    def error(self, message: str) -> NoReturn:
        """Raise UserError with argparse's own words."""
        raise UserError(f"{message}; --help lists all flags")
