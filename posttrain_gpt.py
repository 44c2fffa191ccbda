"""Run a post-training stage from a YAML configuration: `python posttrain_gpt.py --help`."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindllm.config.cli import Command


def main(arguments: list[str]) -> int:
    """Compose, check and run; return the exit status (2: a mistake of the user's, 130: interrupted)."""
    from mindllm.config.cli import parse_command
    from mindllm.errors import UserError

    try:
        return _run(parse_command(arguments))
    except UserError as error:
        print(f"error: {error}".replace("\n", "\nerror: "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(command: "Command") -> int:
    from mindllm.config import compose_config, resolved_yaml

    config = compose_config(command.config_name, command.overrides, command.config_dir)
    if command.print_config:
        print(resolved_yaml(config), end="")
        return 0
    from mindllm import preflight

    preflight.check(config)
    if command.check_only:
        print("ok: configuration, paths, data, rewards, checkpoint and resources")
        return 0
    from mindllm import stages

    return stages.run(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
