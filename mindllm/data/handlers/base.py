"""What a handler is, how it is registered, and what it returns."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from mindllm.data.readers import Row
from mindllm.data.templates import Message, Template, load_template
from mindllm.data.tokenizer import TextEncoder, TokenizerSpec
from mindllm.errors import UserError, did_you_mean

PromptOverlong = Literal["drop", "left", "error"]
Overlong = Literal["drop", "truncate", "error"]


@dataclass(frozen=True)
class HandlerOptions:
    """The user's choices, the same in every worker process."""

    handler: str
    prompt_type: str
    map_keys: Mapping[str, str] | None = None
    seq_length: int | None = None  # tokens; None = no limit
    prompt_overlong: PromptOverlong = "drop"
    overlong: Overlong = "drop"


@dataclass
class Encoded:
    """Samples of some rows, in row order.

    Attributes:
        rows_in: number of rows they came from.
        tokens: for each output key the ids of all samples, concatenated, int32 [num_tokens].
        lengths: for each output key the lengths of its samples, int32 [num_samples].
        columns: extra columns of the samples that are kept; empty where the handler keeps none.
        dropped: rows left out, by reason.
        changed: samples changed on the way (truncated, ...), by kind.
        trained_tokens: labels that are trained on; 0 where there are no labels.
    """

    rows_in: int
    tokens: dict[str, np.ndarray]
    lengths: dict[str, np.ndarray]
    columns: list[dict[str, Any]]
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    trained_tokens: int = 0


class DropRow(Exception):
    """A row that becomes no sample; the argument is the reason that is counted."""


class RowShape(Protocol):
    """How rows of one shape are read: which columns there must be, and the conversations they hold."""

    required: list[str]  # columns that must exist


class PromptShape(RowShape, Protocol):
    """Rows that hold a prompt."""

    consumed: set[str]  # columns that make up the prompt

    def prompt(self, row: Row) -> list[Message]:
        """The conversation up to the last user turn. Raises DropRow when there is none."""

    def prompt_text(self, row: Row) -> str:
        """The last user turn as plain text. Raises DropRow when there is none."""


class DialogueShape(RowShape, Protocol):
    """Rows that hold a prompt and its answer."""

    def dialogue(self, row: Row) -> list[Message]:
        """The conversation with its last answer. Raises DropRow when it is incomplete."""


class PairShape(RowShape, Protocol):
    """Rows that hold a prompt and two answers."""

    def pair(self, row: Row) -> tuple[list[Message], list[Message]]:
        """The conversation with the chosen answer, and with the rejected one. Raises DropRow when incomplete."""


class Handler(ABC):
    """Turns rows into samples. Subclasses name their outputs and the row shape they read."""

    keys: ClassVar[tuple[str, ...]]  # files written: {prefix}_{key}_document.bin
    limit_option: ClassVar[str]  # the over-length option that has an effect
    keeps_columns: ClassVar[bool] = False

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        self.options = options
        self.shape = self.make_shape(options.map_keys)
        self.encoder = TextEncoder(spec)
        self.template: Template = load_template(options.prompt_type, spec)
        for marker in self.template.markers:
            # In pieces a marker would be text: no token that ends an answer, and nothing a model has learnt.
            if self.encoder.token_id(marker) is None or len(self.encoder.encode([marker])[0]) != 1:
                raise UserError(
                    f"--prompt-type {options.prompt_type} uses {marker}, which is no token of the tokenizer in "
                    f"{spec.path}; choose another template or add the token to tokenizer and model"
                )

    @classmethod
    @abstractmethod
    def make_shape(cls, map_keys: Mapping[str, str] | None) -> RowShape:
        """The row shape under a column mapping; raises UserError for a mapping that makes no sense."""

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> Encoded:
        """Encode rows; the result depends on nothing but the rows and the options."""


_REGISTRY: dict[str, type[Handler]] = {}


def register_handler(cls: type[Handler]) -> type[Handler]:
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


def build_handler(options: HandlerOptions, spec: TokenizerSpec) -> Handler:
    """The handler an options object asks for, ready to encode."""
    return handler_class(options.handler)(options, spec)


def flatten(samples: Iterable[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate samples: int32 [num_tokens], and their lengths, int32 [num_samples]."""
    kept = [np.asarray(sample, dtype=np.int32) for sample in samples]
    lengths = np.array([len(sample) for sample in kept], dtype=np.int32)
    return np.concatenate([np.empty(0, np.int32), *kept]), lengths


@contextmanager
def naming(row: Row) -> Iterator[None]:
    """Put the row's place before the message of a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{row.where}: {error}") from error
