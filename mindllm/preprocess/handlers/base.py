"""What a handler is, how it is registered, and what it returns."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import RowError, UserError, did_you_mean
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import IGNORED, TextEncoder, Tokenized
from mindllm.templates.lookup import load_template
from mindllm.templates.messages import Message, Rendered, Template, Tools

PromptOverlong = Literal["drop", "left", "error"]
Overlong = Literal["drop", "truncate", "error"]
OnBadRow = Literal["error", "skip"]
MapKeys = Mapping[str, Any]
Result = TypeVar("Result")
SETTINGS_COLUMN = "chat_template_kwargs"
_ARGUMENTS = {"messages", "tools", "documents", "add_generation_prompt"}  # of chat templates, which are no settings


@dataclass(frozen=True)
class HandlerOptions:
    """The user's choices, the same in every worker process. Which of them have an effect a handler says itself."""

    handler: str
    prompt_type: str | None = None  # None where the handler uses no template
    map_keys: MapKeys | None = None
    seq_length: int | None = None  # tokens; None = no limit
    prompt_overlong: PromptOverlong = "drop"
    overlong: Overlong = "drop"
    train_on_history: bool = True
    thinking: bool = True
    append_eod: bool = False
    dataset_additional_keys: tuple[str, ...] | None = None  # None = the handler's own choice
    placeholder_token: str | None = None
    reward_tokens: tuple[str, ...] | None = None
    on_bad_row: OnBadRow = "error"
    handler_file: str | None = None


class Sample(NamedTuple):
    """One sample: for each output key its ids, int32 [length], and the extra columns that are kept."""

    arrays: dict[str, np.ndarray]
    columns: dict[str, Any] | None = None


@dataclass
class Encoded:
    """Samples of some rows, in row order.

    Attributes:
        rows_in: number of rows they came from.
        tokens: for each output key the ids of all samples, concatenated, int32 [num_tokens].
        lengths: for each output key the lengths of its samples, int32 [num_samples].
        kept: for each sample the position of its row among the rows, int32 [num_samples].
        columns: extra columns of the samples that are kept; empty where the handler keeps none.
        dropped: rows left out, by reason.
        changed: samples changed on the way (truncated, ...), by kind.
        trained_tokens: labels that are trained on; 0 where there are no labels.
    """

    rows_in: int
    tokens: dict[str, np.ndarray]
    lengths: dict[str, np.ndarray]
    kept: np.ndarray
    columns: list[dict[str, Any]]
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    trained_tokens: int = 0


class DropRow(Exception):
    """A row that becomes no sample; the argument is the reason that is counted."""


def json_cell(row: Row, column: str | None, role: str) -> Any:
    """What a column holds, as values or as JSON text; None for blank text. Raises DropRow for other text."""
    return parsed(row.values.get(column) if column else None, role)


def parsed(value: Any, role: str) -> Any:
    """A value, or what it is as JSON text; None for blank text. Raises DropRow for other text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except ValueError as error:
        raise DropRow(f"invalid_{role}") from error


class RowShape(Protocol):
    """How rows of one shape are read: which columns there must be, and the conversations they hold."""

    required: list[str]  # columns that must exist

    def tools(self, row: Row) -> Tools:
        """The tools the model may call, () where there are none. Raises DropRow when they cannot be read."""


class PromptShape(RowShape, Protocol):
    """Rows that hold a prompt."""

    consumed: set[str]  # columns that make up the prompt

    def prompt(self, row: Row) -> list[Message]:
        """The conversation up to what is to be answered. Raises DropRow when there is none."""


class DialogueShape(RowShape, Protocol):
    """Rows that hold a prompt and its answer."""

    def dialogue(self, row: Row) -> list[Message]:
        """The conversation with its last answer. Raises DropRow when it is incomplete."""


class PairShape(RowShape, Protocol):
    """Rows that hold a prompt and two answers."""

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The conversation with the chosen answer, and with the rejected one. Raises DropRow when incomplete."""


class Handler(ABC):
    """Turns rows into samples. A subclass says how a row becomes text, and how encoded text becomes a sample."""

    keys: ClassVar[tuple[str, ...]]  # files written: {prefix}_{key}_document.bin
    options_used: ClassVar[frozenset[str]]  # those of `HandlerOptions` that have an effect, the general ones apart
    keeps_columns: ClassVar[bool] = False
    uses_template: ClassVar[bool] = True

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        self.options = options
        self.shape = self.make_shape(options)
        self.encoder = TextEncoder(spec)
        self.adds_bos = False  # whether the ids of texts that do not begin with the BOS get one
        if options.prompt_type is not None:
            self.template: Template = load_template(options.prompt_type, spec, options.thinking)
            self.adds_bos = self.template.adds_bos
            self._check_markers(options.prompt_type, spec)

    @classmethod
    @abstractmethod
    def make_shape(cls, options: HandlerOptions) -> RowShape:
        """The row shape under the options; raises UserError for a column mapping that makes no sense."""

    @classmethod
    def required_columns(cls, options: HandlerOptions) -> list[str]:
        """Columns that must exist; raises as `make_shape` does."""
        return cls.make_shape(options).required

    def columns_rendered(self, row: Row) -> Container[str]:
        """The columns of a row that `render` may read; the others are kept as they are, or dropped."""
        return row.values

    @abstractmethod
    def render(self, row: Row) -> list[Rendered]:
        """The texts of a row's sample, as many for each row. Raises DropRow for a row without a sample."""

    @abstractmethod
    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """The sample of a row whose texts are encoded. Raises DropRow for a row without a sample."""

    def encode(self, rows: Sequence[Row]) -> Encoded:
        """Encode rows; the result depends on nothing but the rows and the options.

        Raises:
            UserError: a row that is an error under the options; the message names it.
        """
        dropped: Counter[str] = Counter()
        changed: Counter[str] = Counter()
        rows = [row.without_absent_keys(self.columns_rendered(row)) for row in rows]
        rendered = [self._caught(self._rendered, row, dropped) for row in rows]
        texts = [text for found in rendered for text in found or []]
        encode = self.encoder.encode_split if self._splits_answers else self.encoder.encode_marked
        encoded = iter(encode(texts, self.adds_bos))
        samples, kept = [], []
        for position, (row, found) in enumerate(zip(rows, rendered, strict=True)):
            if found is None:
                continue
            tokenized = [next(encoded) for _ in found]
            sample = self._caught(partial(self.finish, texts=tokenized, changed=changed), row, dropped)
            if sample is not None:
                changed["reasoning_left_out"] += any({*text.marked} & {*text.bare} for text in found)
                samples.append(sample)
                kept.append(position)
        return self._collect(len(rows), samples, kept, dropped, +changed)

    def template_for(self, row: Row) -> Template:
        """The template under the settings of a row, which TRL reads from the same column.

        Raises:
            DropRow: they are no settings.
        """
        settings = json_cell(row, SETTINGS_COLUMN, SETTINGS_COLUMN)
        if not settings:
            return self.template
        if not isinstance(settings, dict) or _ARGUMENTS & settings.keys():
            raise DropRow(f"invalid_{SETTINGS_COLUMN}")
        return self.template.under({name: value for name, value in settings.items() if value is not None})

    @property
    def _splits_answers(self) -> bool:
        return self.options.prompt_type is not None and self.template.split_answers

    def _rendered(self, row: Row) -> list[Rendered]:
        row.check()
        return self.render(row)

    def _caught(self, work: Callable[[Row], Result], row: Row, dropped: Counter[str]) -> Result | None:
        try:
            return work(row)
        except RowError as error:
            if self.options.on_bad_row == "error":
                remedy = "--on-bad-row skip leaves such rows out and counts them"
                raise UserError(f"{row.where}: {error}; {remedy}") from error
            dropped[error.reason] += 1
            return None
        except UserError as error:
            raise UserError(f"{row.where}: {error}") from error
        except DropRow as reason:
            dropped[str(reason)] += 1
            return None

    def _collect(
        self, rows_in: int, samples: list[Sample], kept: list[int], dropped: Counter[str], changed: Counter[str]
    ) -> Encoded:
        tokens: dict[str, np.ndarray] = {}
        lengths: dict[str, np.ndarray] = {}
        trained = 0
        for key in self.keys:
            arrays = [sample.arrays[key] for sample in samples]
            tokens[key] = np.concatenate([np.empty(0, np.int32), *arrays]).astype(np.int32, copy=False)
            lengths[key] = np.array([len(array) for array in arrays], dtype=np.int32)
            if key.endswith("labels"):
                trained += int((tokens[key] != IGNORED).sum())
        columns = [sample.columns for sample in samples if sample.columns is not None]
        positions = np.array(kept, dtype=np.int32)
        return Encoded(rows_in, tokens, lengths, positions, columns, dropped, changed, trained)

    def _check_markers(self, prompt_type: str, spec: TokenizerSpec) -> None:
        for marker in self.template.markers:
            # In pieces a marker would be text: no token that ends an answer, and nothing a model has learnt.
            if self.encoder.token_id(marker) is None or len(self.encoder.encode([marker])[0]) != 1:
                raise UserError(
                    f"--prompt-type {prompt_type} uses {marker}, which is no token of the tokenizer in {spec.path}; "
                    "choose another template or add the token to tokenizer and model"
                )


AnyHandler = TypeVar("AnyHandler", bound=type[Handler])
_REGISTRY: dict[str, type[Handler]] = {}


def register_handler(cls: AnyHandler) -> AnyHandler:
    """Class decorator: make a handler known by its class name."""
    _REGISTRY[cls.__name__] = cls
    return cls


def handler_names() -> list[str]:
    """Every value `--handler-name` accepts."""
    return sorted(_REGISTRY)


def handler_class(name: str) -> type[Handler]:
    """The handler registered under a name.

    Raises:
        UserError: no such handler.
    """
    if name not in _REGISTRY:
        raise UserError(
            f"unknown --handler-name {name}; known are {', '.join(handler_names())}{did_you_mean(name, _REGISTRY)}"
        )
    return _REGISTRY[name]
