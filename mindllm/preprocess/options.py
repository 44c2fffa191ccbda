"""The options of a preprocessing run, and which of them have an effect."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers import Handler, HandlerOptions, handler_class, load_handler_file
from mindllm.preprocess.handlers.base import MapKeys, OnBadRow
from mindllm.preprocess.output.order import OrderOptions
from mindllm.preprocess.output.packing import Packing
from mindllm.preprocess.tokenize.pick_engine import EngineChoice
from mindllm.templates.lookup import resolve_prompt_type

# Options that only some handlers use: a value other than None is refused by the others.
_SPECIFIC = (
    "prompt_overlong overlong train_on_history thinking append_eod dataset_additional_keys placeholder_token "
    "reward_tokens pack"
).split()

_SPELT = {("pack", "neat"): "--neat-pack", ("train_on_history", False): "--no-train-on-history"}


@dataclass(frozen=True)
class PreprocessOptions:
    """A whole run. None means: not given, so the handler's own default holds."""

    inputs: list[str]
    output_prefix: Path
    tokenizer: Path  # a directory, or a sentencepiece model
    handler: str
    prompt_type: str | None = None
    map_keys: MapKeys | None = None
    seq_length: int | None = None
    prompt_overlong: str | None = None
    overlong: str | None = None
    train_on_history: bool | None = None
    thinking: bool | None = None
    append_eod: bool | None = None
    dataset_additional_keys: tuple[str, ...] | None = None
    placeholder_token: str | None = None
    reward_tokens: tuple[str, ...] | None = None
    pack: Packing | None = None
    on_bad_row: OnBadRow = "error"
    handler_file: str | None = None
    order: OrderOptions = field(default_factory=OrderOptions)
    engine: EngineChoice = "auto"
    workers: int = 1
    n_subs: int | None = None  # None = one part for one worker, a few for each of several
    log_interval: int = 1000
    overwrite: bool = False


def find_handler(options: PreprocessOptions) -> type[Handler]:
    """The handler asked for, once it is clear that every option given has an effect on it.

    Raises:
        UserError: unknown handler, or an option without effect.
    """
    if options.handler_file is not None:
        load_handler_file(options.handler_file)
    kind = handler_class(options.handler)
    limits = sorted(kind.options_used & {"overlong", "prompt_overlong"})
    for name in _SPECIFIC:
        if getattr(options, name) is None or name in kind.options_used:
            continue
        instead = f"; use {_flag(limits[0])}" if name in ("overlong", "prompt_overlong") and limits else ""
        raise UserError(f"{_flag(name, getattr(options, name))} has no effect with {options.handler}{instead}")
    if options.prompt_type is not None and not kind.uses_template:
        raise UserError(f"--prompt-type has no effect with {options.handler}, which uses no template")
    if options.seq_length is not None and not limits:
        raise UserError(f"--seq-length has no effect with {options.handler}, whose documents are not limited")
    for name in ("overlong", "prompt_overlong", "pack"):
        if getattr(options, name) is not None and options.seq_length is None:
            needs = "needs" if name == "pack" else "has no effect without"
            raise UserError(f"{_flag(name, getattr(options, name))} {needs} --seq-length")
    return kind


def _flag(name: str, value: object = None) -> str:
    """The command-line flag that gives an option this value."""
    return _SPELT.get((name, value), "--" + name.replace("_", "-"))


def handler_options(options: PreprocessOptions, kind: type[Handler], spec: TokenizerSpec) -> HandlerOptions:
    """What the handler needs to know; options not given have the handler's defaults."""
    given: dict[str, Any] = {
        name: value for name in _SPECIFIC if name != "pack" and (value := getattr(options, name)) is not None
    }
    return HandlerOptions(
        handler=options.handler,
        prompt_type=resolve_prompt_type(options.prompt_type, spec) if kind.uses_template else None,
        map_keys=options.map_keys,
        seq_length=options.seq_length,
        on_bad_row=options.on_bad_row,
        handler_file=options.handler_file,
        **given,
    )
