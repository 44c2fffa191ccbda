"""Command line of preprocess_data.py."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mindllm.data.handlers import handler_names
from mindllm.data.preprocess import PreprocessOptions, preprocess
from mindllm.data.templates import template_names
from mindllm.errors import UserError, did_you_mean

_EXAMPLE = """example:
  python preprocess_data.py --input train.jsonl --output-prefix data/train \\
    --handler-name PPOAlpacaStyleInstructionHandler --tokenizer-name-or-path models/qwen \\
    --map-keys '{"prompt": "question"}' --seq-length 512
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists all flags")


def build_parser() -> argparse.ArgumentParser:
    """The parser, with every flag that has an effect and no other."""
    parser = _Parser(
        prog="preprocess_data.py",
        description="Turn json, jsonl and parquet files into Megatron indexed files.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_data_flags(parser)
    _add_text_flags(parser)
    _add_speed_flags(parser)
    return parser


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--input", nargs="+", required=True, help="files (also comma-separated) or directories")
    group.add_argument("--output-prefix", required=True, type=Path, help="outputs are PREFIX_{key}_document.bin, ...")
    group.add_argument("--overwrite", action="store_true", help="replace data already under the prefix")
    group.add_argument("--handler-name", required=True, help=", ".join(handler_names()))
    group.add_argument(
        "--map-keys",
        type=_mapping,
        metavar="JSON",
        help='your column for each of prompt, query, response, system, history: \'{"prompt": "question"}\'; '
        "replaces the defaults (instruction, input, output, system, history); an empty name means none",
    )


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("text to tokens")
    group.add_argument("--tokenizer-type", default="PretrainedFromHF", choices=["PretrainedFromHF"])
    group.add_argument("--tokenizer-name-or-path", required=True, type=Path, help="local Hugging Face directory")
    group.add_argument(
        "--prompt-type", help=f"{', '.join(template_names())} or a template file (default: hf, if there is one)"
    )
    group.add_argument("--seq-length", type=_positive, help="most tokens of a prompt (RL) or a sample (SFT)")
    group.add_argument(
        "--prompt-overlong",
        choices=["drop", "left", "error"],
        help="RL: what to do with longer prompts (default: drop)",
    )
    group.add_argument(
        "--overlong", choices=["drop", "truncate", "error"], help="SFT: what to do with longer samples (default: drop)"
    )


def _add_speed_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speed and size")
    group.add_argument("--workers", type=_positive, default=1, help="processes that encode (default: 1)")
    group.add_argument(
        "--n-subs",
        type=_positive,
        default=1,
        help="parts that workers read, encode and write on their own before they are merged; with many workers this "
        "takes reading and writing off the main process (default: 1)",
    )
    group.add_argument(
        "--log-interval", type=_positive, default=1000, help="documents between progress lines (default: 1000)"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {value}")
    return value


def _mapping(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON ({error}): {text}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise argparse.ArgumentTypeError(f"must be an object from names to column names, found {text}")
    return found


def parse(argv: Sequence[str]) -> PreprocessOptions:
    """Parse a command line.

    Raises:
        UserError: an unknown flag or a bad value.
    """
    parser = build_parser()
    found, unknown = parser.parse_known_args(argv)
    for flag in unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        raise UserError(f"unknown argument {flag}; --help lists all{did_you_mean(flag.split('=')[0], flags)}")
    return PreprocessOptions(
        inputs=found.input,
        output_prefix=found.output_prefix,
        tokenizer=found.tokenizer_name_or_path,
        handler=found.handler_name,
        prompt_type=found.prompt_type,
        map_keys=found.map_keys,
        seq_length=found.seq_length,
        prompt_overlong=found.prompt_overlong,
        overlong=found.overlong,
        workers=found.workers,
        n_subs=found.n_subs,
        log_interval=found.log_interval,
        overwrite=found.overwrite,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit status (2 for a mistake of the user's)."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        manifest = preprocess(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or options.output_prefix}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    rows, tokens = manifest["rows"], manifest["tokens"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in rows["dropped"].items())
    print(
        f"{rows['in']} rows in, {rows['written']} written, {rows['in'] - rows['written']} dropped"
        f"{f' ({dropped})' if dropped else ''}; {tokens['total']} tokens; {options.output_prefix}_manifest.json"
    )
    return 0
