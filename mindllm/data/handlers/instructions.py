"""Dialogues for SFT: every answer and its end token is trained, nothing else is."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mindllm.data.handlers.base import DropRow, Encoded, Handler, flatten, naming
from mindllm.data.readers import Row
from mindllm.data.templates import Rendered
from mindllm.errors import UserError

IGNORED = -100  # label of a token that is not trained


class _Tokenized(NamedTuple):
    """A dialogue's ids, and its answers as (start, end) ranges of token positions."""

    ids: list[int]
    answers: list[tuple[int, int]]


class InstructionHandler(Handler):
    """Encodes dialogues; subclasses say which row shape they read."""

    keys = ("input_ids", "labels")
    limit_option = "overlong"

    def encode(self, rows: Sequence[Row]) -> Encoded:
        """See `Handler.encode`. Labels stand at the position of their own token (not shifted)."""
        dropped: Counter[str] = Counter()
        changed: Counter[str] = Counter()
        dialogues, kept = [], []
        for row in rows:
            try:
                with naming(row):
                    dialogues.append(self.template.render_dialogue(self.shape.dialogue(row)))
                kept.append(row)
            except DropRow as reason:
                dropped[str(reason)] += 1
        samples = []
        for row, sample in zip(kept, self._tokenize(dialogues), strict=True):
            try:
                with naming(row):
                    samples.append(self._within_limit(sample, changed))
            except DropRow as reason:
                dropped[str(reason)] += 1
        tokens, lengths = flatten(sample.ids for sample in samples)
        labels, _ = flatten(_labels(sample) for sample in samples)
        trained = int((labels != IGNORED).sum())
        return Encoded(len(rows), {"input_ids": tokens, "labels": labels}, lengths, [], dropped, changed, trained)

    def _tokenize(self, dialogues: list[Rendered]) -> list[_Tokenized]:
        if self.template.split_answers:
            return self._tokenize_split(dialogues)
        encoded = self.encoder.encode_with_offsets([dialogue.text for dialogue in dialogues])
        return [
            # Offsets ascend, so a range of characters is a range of tokens: those that begin in it.
            _Tokenized(ids, [(bisect_left(offsets, (a,)), bisect_left(offsets, (b,))) for a, b in dialogue.trained])
            for dialogue, (ids, offsets) in zip(dialogues, encoded, strict=True)
        ]

    def _tokenize_split(self, dialogues: list[Rendered]) -> list[_Tokenized]:
        """Encode each answer, and each stretch between answers, on its own."""
        pieces = []
        for text, trained in dialogues:
            borders = [0, *(border for span in trained for border in span), len(text)]
            pieces += [text[start:end] for start, end in zip(borders, borders[1:], strict=False)]
        encoded = iter(self.encoder.encode(pieces))
        tokenized = []
        for _, trained in dialogues:
            ids = next(encoded)
            answers = []
            for _ in trained:
                answer = next(encoded)
                answers.append((len(ids), len(ids) + len(answer)))
                ids = [*ids, *answer, *next(encoded)]
            tokenized.append(_Tokenized(ids, answers))
        return tokenized

    def _within_limit(self, sample: _Tokenized, changed: Counter[str]) -> _Tokenized:
        limit = self.options.seq_length
        if not any(start < end for start, end in sample.answers):
            raise DropRow("nothing_to_train")
        if limit is None or len(sample.ids) <= limit:
            return sample
        if self.options.overlong == "drop":
            raise DropRow("too_long")
        if self.options.overlong == "error":
            raise UserError(
                f"the dialogue has {len(sample.ids)} tokens, --seq-length allows {limit}; "
                "--overlong drop or truncate would pass"
            )
        return self._truncate(sample, limit, changed)

    def _truncate(self, sample: _Tokenized, limit: int, changed: Counter[str]) -> _Tokenized:
        """Keep the turns that fit whole; of a first turn that does not fit, cut the answer, if any of it fits."""
        whole = [(start, end) for start, end in sample.answers if end <= limit]
        if whole and any(start < end for start, end in whole):
            dropped_turns = len(sample.answers) - len(whole)
            changed["dialogues_shortened"] += bool(dropped_turns)
            changed["turns_removed"] += dropped_turns
            return _Tokenized(sample.ids[: whole[-1][1]], whole)
        start = sample.answers[0][0]
        if start >= limit:
            raise DropRow("prompt_too_long")
        changed["answers_cut"] += 1
        return _Tokenized(sample.ids[:limit], [(start, limit)])


def _labels(sample: _Tokenized) -> list[int]:
    labels = [IGNORED] * len(sample.ids)
    for start, end in sample.answers:
        labels[start:end] = sample.ids[start:end]
    return labels
