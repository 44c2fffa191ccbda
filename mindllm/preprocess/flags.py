"""Flags of preprocess_data.py."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindllm.command_line import Parser, path, positive, program, seed
from mindllm.errors import UserError, known_answer
from mindllm.preprocess.handlers import handler_names
from mindllm.preprocess.inputs.json_lines import unique_keys
from mindllm.preprocess.options import PreprocessOptions
from mindllm.preprocess.output.order import OrderOptions
from mindllm.templates.lookup import template_names

_EXAMPLE = """example:
  %(prog)s --input train.jsonl --output-prefix data/train \\
    --handler-name PPOAlpacaStyleInstructionHandler --tokenizer-name-or-path models/qwen \\
    --map-keys '{"prompt": "question"}' --seq-length 512
"""
# Flags of Megatron, MindSpeed, TRL and ms-swift, without dashes: what to do here instead.
_FLAGS_ELSEWHERE = {
    "json_keys columns text_column* prompt_key response_key": "write --map-keys",
    "dataset_impl": "data is always written as memory-mapped indexed files",
    "vocab_file merge_file vocab_size tokenizer_vocab_size": "write --tokenizer-name-or-path, a Hugging Face directory",
    "tokenizer tokenizer_path model model_name_or_path": "write --tokenizer-name-or-path",
    "tokenizer_not_use_fast use_fast*": "the tokenizer that Hugging Face loads is used; --engine chooses the library",
    "trust_remote_code": "no code from a tokenizer's folder is run",
    "output output_dir output_path save_path": "write --output-prefix",
    "num_workers preprocessing_num_workers num_proc dataset_num_proc nproc": "write --workers",
    "max_length max_seq_length max_len cutoff_len max_source_length max_prompt_length": "write --seq-length",
    "truncation* truncate": "write --overlong (samples) or --prompt-overlong (prompts)",
    "packing": "write --pack",
    "neat_packing": "write --neat-pack",
    "template chat_template* template_type": "write --prompt-type",
    "prompt_type_path": "write --prompt-type FILE",
    "enable_thinking": "write --thinking on or off",
    "dataset dataset_name dataset_path data_files train_file* data_path": "write --input",
    "dataset_*": "files are named with --input, columns with --map-keys",
    "cache_dir overwrite_cache": "nothing is cached; --overwrite replaces data under the prefix",
    "streaming": "files are always read as a stream",
    "split_sentences keep_newlines partitions": "there is no such step; a document is one row",
    "val_size split_dataset_ratio": "write --split",
    "num_samples max_train_samples": "write --max-samples",
    "system": "the system prompt is a column (--map-keys) or part of the template (--prompt-type)",
    "label_mask mask_history": "write --no-train-on-history",
}
_HF, _SENTENCEPIECE = "PretrainedFromHF", "GPTSentencePieceTokenizer"


def build_parser() -> Parser:
    """The parser, with every flag that has an effect and no other."""
    parser = Parser(
        prog=program("preprocess_data.py", "preprocess"),
        description="Turn json, jsonl, csv, txt (also .gz, .zst), parquet and arrow files into Megatron indexed files.",
        epilog=_EXAMPLE,
    )
    _add_data_flags(parser)
    _add_order_flags(parser)
    _add_text_flags(parser)
    _add_length_flags(parser)
    _add_speed_flags(parser)
    return parser


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--input",
        nargs="+",
        type=_input,
        required=True,
        help="files, globs, directories, or directories that datasets saved",
    )
    group.add_argument(
        "--output-prefix", required=True, type=_prefix, help="outputs are PREFIX_{key}_document.bin, ..."
    )
    group.add_argument("--overwrite", action="store_true", help="replace data already under the prefix")
    group.add_argument("--handler-name", required=True, help=", ".join(handler_names()))
    group.add_argument("--handler-file", type=path, help="python file of your own that registers the handler")
    group.add_argument(
        "--map-keys",
        type=_mapping,
        metavar="JSON",
        help='your columns for the handler\'s roles (docs/data.md): \'{"prompt": "question"}\'; roles not named keep '
        'their default columns, "" removes one',
    )
    group.add_argument(
        "--dataset-additional-keys",
        nargs="+",
        metavar="COLUMN",
        help="RL: the columns kept for rewards (default: all; with R1 handlers labels, the answer)",
    )
    group.add_argument(
        "--on-bad-row",
        choices=["error", "skip"],
        default="error",
        help="rows that cannot be read, or that the template refuses (default: error)",
    )
    group.add_argument(
        "--preview", type=positive, metavar="N", help="show how the first N rows turn out, write nothing"
    )


def _add_order_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which rows, in which order")
    group.add_argument("--max-samples", type=positive, help="at most so many rows (of the shuffled ones, if shuffled)")
    group.add_argument("--shuffle", action="store_true", help="write rows in an order drawn with --seed")
    group.add_argument("--seed", type=seed, default=0, help="of --shuffle and the interleaving strategies (default: 0)")
    group.add_argument(
        "--split", type=_numbers, metavar="98,1,1", help="weights of PREFIX_train, PREFIX_valid and PREFIX_test"
    )
    group.add_argument(
        "--mix-strategy",
        choices=["concat", "interleave_under", "interleave_over"],
        default="concat",
        help="several inputs one after the other, or drawn in turn until the first (under) or the last (over) has run "
        "out (default: concat)",
    )
    group.add_argument(
        "--interleave-probs", type=_numbers, metavar="P,P,...", help="one for each input (default: equal)"
    )


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("text to tokens")
    group.add_argument("--tokenizer-type", default=_HF, choices=[_HF, _SENTENCEPIECE])
    group.add_argument("--tokenizer-name-or-path", type=_file, help="local Hugging Face directory")
    group.add_argument("--tokenizer-model", type=_file, help=f"sentencepiece model, with {_SENTENCEPIECE}")
    group.add_argument(
        "--prompt-type",
        type=path,
        help=f"{', '.join(template_names())} or a template file (default: hf, if there is one)",
    )
    group.add_argument(
        "--thinking",
        choices=["on", "off"],
        help="qwen3 and some chat templates: answers open with their reasoning, or with an empty one (default: on)",
    )
    group.add_argument(
        "--train-on-history",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="SFT: train all answers, or the last one only (default: all)",
    )
    group.add_argument(
        "--append-eod", action="store_const", const=True, help="pretraining: the EOS token after every document"
    )
    group.add_argument("--placeholder-token", help="process rewards: what ends a step")
    group.add_argument("--reward-tokens", nargs="+", metavar="TOKEN", help="process rewards: how steps are judged")


def _add_length_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("length")
    group.add_argument("--seq-length", type=positive, help="most tokens of a prompt (RL), a sample, or a packed row")
    group.add_argument(
        "--prompt-overlong",
        choices=["drop", "left", "error"],
        help="RL: what to do with longer prompts (default: drop)",
    )
    group.add_argument(
        "--overlong", choices=["drop", "truncate", "error"], help="what to do with longer samples (default: drop)"
    )
    packing = group.add_mutually_exclusive_group()
    packing.add_argument(
        "--pack", action="store_const", const="pack", help="SFT: several samples in each row of --seq-length tokens"
    )
    packing.add_argument(
        "--neat-pack", dest="pack", action="store_const", const="neat", help="the same, with their boundaries kept"
    )


def _add_speed_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speed and size")
    group.add_argument("--workers", type=positive, default=1, help="processes that encode (default: 1)")
    group.add_argument(
        "--n-subs",
        type=positive,
        help="parts that workers read, encode and write on their own before they are joined (default: one for one "
        "worker, else 32 for each, where inputs can be read from the middle)",
    )
    group.add_argument(
        "--engine",
        choices=["auto", "tokenizers", "tiktoken"],
        default="auto",
        help="library that encodes; auto takes tiktoken for many rows where it is installed and gives the same ids",
    )
    group.add_argument(
        "--log-interval", type=positive, default=1000, help="documents between progress lines (default: 1000)"
    )


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be numbers with commas between, found {text}") from error


def _prefix(text: str) -> Path:
    if text.endswith("/"):
        raise argparse.ArgumentTypeError(f"{text} is a directory; add how the files' names begin, as in {text}train")
    return _file(text)


def _file(text: str) -> Path:
    return Path(path(text))


def _input(text: str) -> str:
    """One input, or several with commas between."""
    return text if Path(text).exists() else ",".join(path(part.strip()) for part in text.split(","))


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=unique_keys)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON ({error}): {text}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be an object from names to column names, found {text}")
    return found


def parse(argv: Sequence[str]) -> tuple[PreprocessOptions, int | None]:
    """Parse a command line: the options of the run, and how many rows are to be previewed instead.

    Raises:
        UserError: an unknown flag or a bad value.
    """
    parser = build_parser()
    parser.check_flags(argv, lambda flag: known_answer(flag, _FLAGS_ELSEWHERE))
    found = parser.parse_args(argv)
    order = OrderOptions(
        found.max_samples, found.shuffle, found.seed, found.split, found.mix_strategy, found.interleave_probs
    )
    if found.seed and not found.shuffle and found.mix_strategy == "concat":
        raise UserError("--seed has no effect without --shuffle or an interleaving --mix-strategy")
    options = PreprocessOptions(
        inputs=found.input,
        output_prefix=found.output_prefix,
        tokenizer=_tokenizer(found),
        handler=found.handler_name,
        prompt_type=found.prompt_type,
        map_keys=found.map_keys,
        seq_length=found.seq_length,
        prompt_overlong=found.prompt_overlong,
        overlong=found.overlong,
        train_on_history=found.train_on_history,
        thinking=None if found.thinking is None else found.thinking == "on",
        append_eod=found.append_eod,
        dataset_additional_keys=_tuple(found.dataset_additional_keys),
        placeholder_token=found.placeholder_token,
        reward_tokens=_tuple(found.reward_tokens),
        pack=found.pack,
        on_bad_row=found.on_bad_row,
        handler_file=found.handler_file,
        order=order,
        engine=found.engine,
        workers=found.workers,
        n_subs=found.n_subs,
        log_interval=found.log_interval,
        overwrite=found.overwrite,
    )
    return options, found.preview


def _tokenizer(found: argparse.Namespace) -> Path:
    given = {"--tokenizer-name-or-path": found.tokenizer_name_or_path, "--tokenizer-model": found.tokenizer_model}
    wanted = "--tokenizer-model" if found.tokenizer_type == _SENTENCEPIECE else "--tokenizer-name-or-path"
    for flag, value in given.items():
        if value is not None and flag != wanted:
            raise UserError(f"{flag} has no effect with --tokenizer-type {found.tokenizer_type}; use {wanted}")
    if given[wanted] is None:
        raise UserError(f"the following arguments are required: {wanted}; --help lists all flags")
    if found.tokenizer_type == _SENTENCEPIECE and found.tokenizer_model.suffix != ".model":
        raise UserError(f"--tokenizer-model {found.tokenizer_model}: expected a sentencepiece file, NAME.model")
    return Path(given[wanted])


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
