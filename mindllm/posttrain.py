"""The program behind posttrain_gpt.py: compose, check, run, and turn failures into an exit status."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindllm.config.cli import Command


def main(arguments: list[str]) -> int:
    """Compose, check and run; return the exit status (1: a worker failed, 2: the user can fix it, 130: interrupted)."""
    from mindllm.command_line import open_standard_output, report_os_error
    from mindllm.config.cli import parse_command
    from mindllm.errors import UserError, WorkerError

    open_standard_output()
    try:
        _run(parse_command(arguments))
        return 0
    except UserError as error:
        print(f"error: {error}".replace("\n", "\nerror: "), file=sys.stderr)
        return 2
    except WorkerError as error:
        # The message holds the worker's own traceback; the driver's says nothing more.
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a file without permission
        return report_os_error(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(command: "Command") -> None:
    from mindllm.command_line import say
    from mindllm.config import compose_config, resolved_yaml

    config = compose_config(command.config_name, command.overrides, command.config_dir)
    if command.print_config:
        print("".join(f"{line}\n" for line in config.notices()), end="", file=sys.stderr)
        say(resolved_yaml(config).removesuffix("\n"))
        return
    if command.check_only:
        for line in config.notices():
            say(line)
    else:
        say(f"{config.training.stage}: checking configuration, checkpoints and data")
    from mindllm import preflight

    passed = preflight.check(config)
    from mindllm import stages

    if command.check_only:
        passed += stages.check_resume(config)
        say("\n".join(f"ok: {line}" for line in passed))
        return
    stages.run(config)
