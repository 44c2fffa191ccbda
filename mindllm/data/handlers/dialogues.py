"""Rendered dialogues to ids, with the ranges of tokens that are trained, within the length limit."""

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

from mindllm.data.handlers.base import DropRow, HandlerOptions
from mindllm.data.templates import Rendered, Template
from mindllm.data.tokenizer import TextEncoder
from mindllm.errors import UserError

IGNORED = -100  # label of a token that is not trained


class Tokenized(NamedTuple):
    """A dialogue's ids, and its trained answers as (start, end) ranges of token positions."""

    ids: list[int]
    answers: list[tuple[int, int]]

    @property
    def labels(self) -> list[int]:
        """Its ids where they are trained and -100 elsewhere; a label stands at its own token (not shifted)."""
        labels = [IGNORED] * len(self.ids)
        for start, end in self.answers:
            labels[start:end] = self.ids[start:end]
        return labels


class DialogueEncoder:
    """Encodes dialogues of one template under one length policy."""

    def __init__(self, options: HandlerOptions, template: Template, encoder: TextEncoder) -> None:
        self._options = options
        self._split_answers = template.split_answers
        self._encoder = encoder

    def tokenize(self, dialogues: list[Rendered]) -> list[Tokenized]:
        """Ids and trained ranges of each dialogue."""
        if self._split_answers:
            return self._tokenize_split(dialogues)
        encoded = self._encoder.encode_with_offsets([dialogue.text for dialogue in dialogues])
        return [
            # Offsets ascend, so a range of characters is a range of tokens: those that begin in it.
            Tokenized(ids, [(bisect_left(offsets, (a,)), bisect_left(offsets, (b,))) for a, b in dialogue.trained])
            for dialogue, (ids, offsets) in zip(dialogues, encoded, strict=True)
        ]

    def _tokenize_split(self, dialogues: list[Rendered]) -> list[Tokenized]:
        """Encode each answer, and each stretch between answers, on its own."""
        pieces = []
        for text, trained in dialogues:
            borders = [0, *(border for span in trained for border in span), len(text)]
            pieces += [text[start:end] for start, end in zip(borders, borders[1:], strict=False)]
        encoded = iter(self._encoder.encode(pieces))
        tokenized = []
        for _, trained in dialogues:
            ids = next(encoded)
            answers = []
            for _ in trained:
                answer = next(encoded)
                answers.append((len(ids), len(ids) + len(answer)))
                ids = [*ids, *answer, *next(encoded)]
            tokenized.append(Tokenized(ids, answers))
        return tokenized

    def fit(self, sample: Tokenized, changed: Counter[str]) -> Tokenized:
        """The sample under the length policy; what was changed is counted.

        Raises:
            DropRow: too long, or nothing of it is trained.
            UserError: too long, where that is an error.
        """
        limit = self._options.seq_length
        if not any(start < end for start, end in sample.answers):
            raise DropRow("nothing_to_train")
        if limit is None or len(sample.ids) <= limit:
            return sample
        if self._options.overlong == "drop":
            raise DropRow("too_long")
        if self._options.overlong == "error":
            raise UserError(
                f"the dialogue has {len(sample.ids)} tokens, --seq-length allows {limit}; "
                "--overlong drop or truncate would pass"
            )
        return _truncate(sample, limit, changed)


def _truncate(sample: Tokenized, limit: int, changed: Counter[str]) -> Tokenized:
    """Keep the turns that fit whole; of a first turn that does not fit, cut the answer, if any of it fits."""
    whole = [(start, end) for start, end in sample.answers if end <= limit]
    if whole and any(start < end for start, end in whole):
        dropped_turns = len(sample.answers) - len(whole)
        changed["dialogues_shortened"] += bool(dropped_turns)
        changed["turns_removed"] += dropped_turns
        return Tokenized(sample.ids[: whole[-1][1]], whole)
    start = sample.answers[0][0]
    if start >= limit:
        raise DropRow("prompt_too_long")
    changed["answers_cut"] += 1
    return Tokenized(sample.ids[:limit], [(start, limit)])
