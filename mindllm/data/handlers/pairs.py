"""Pairs for reward models and DPO: one prompt with a chosen and a rejected answer, each a dialogue of its own."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mindllm.data.handlers.base import DropRow, Encoded, Handler, HandlerOptions, PairShape, flatten, naming
from mindllm.data.handlers.dialogues import IGNORED, DialogueEncoder, Tokenized
from mindllm.data.readers import Row
from mindllm.data.templates import Message, Rendered
from mindllm.data.tokenizer import TokenizerSpec

MARGIN_COLUMN = "margin"  # by how much chosen is better; the one column kept, null where a row has none


class PairHandler(Handler):
    """Encodes pairs; of each dialogue only the last answer is trained. Subclasses say which row shape they read."""

    keys = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
    limit_option = "overlong"
    keeps_columns = True
    shape: PairShape

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        self._dialogues = DialogueEncoder(options, self.template, self.encoder)

    def encode(self, rows: Sequence[Row]) -> Encoded:
        """See `Handler.encode`. Labels stand at the position of their own token (not shifted)."""
        dropped: Counter[str] = Counter()
        changed: Counter[str] = Counter()
        dialogues, kept, margins = [], [], []
        for row in rows:
            try:
                with naming(row):
                    chosen, rejected = self.shape.pair(row)
                    margin = _margin(row)
                    pair = [self._render(chosen), self._render(rejected)]
                dialogues += pair
                kept.append(row)
                margins.append(margin)
            except DropRow as reason:
                dropped[str(reason)] += 1
        tokenized = iter(self._dialogues.tokenize(dialogues))
        pairs: list[tuple[Tokenized, Tokenized]] = []
        columns: list[dict[str, Any]] = []
        for row, margin in zip(kept, margins, strict=True):
            raw = next(tokenized), next(tokenized)
            try:
                with naming(row):
                    pairs.append(self._fit(*raw, changed))
                columns.append({MARGIN_COLUMN: margin})
            except DropRow as reason:
                dropped[str(reason)] += 1
        return _encoded(len(rows), pairs, columns, dropped, changed)

    def _render(self, messages: list[Message]) -> Rendered:
        text, trained = self.template.render_dialogue(messages)
        return Rendered(text, trained[-1:])

    def _fit(self, chosen: Tokenized, rejected: Tokenized, changed: Counter[str]) -> tuple[Tokenized, Tokenized]:
        fitted = self._dialogues.fit(chosen, changed), self._dialogues.fit(rejected, changed)
        if fitted[0].ids == fitted[1].ids:
            raise DropRow("chosen_equals_rejected")
        return fitted


def _margin(row: Row) -> float | None:
    value = row.values.get(MARGIN_COLUMN)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DropRow("margin_not_a_number")
    return float(value)


def _encoded(
    rows_in: int,
    pairs: list[tuple[Tokenized, Tokenized]],
    columns: list[dict[str, Any]],
    dropped: Counter[str],
    changed: Counter[str],
) -> Encoded:
    tokens, lengths, trained = {}, {}, 0
    for side, name in enumerate(("chosen", "rejected")):
        tokens[f"{name}_input_ids"], lengths[f"{name}_input_ids"] = flatten(pair[side].ids for pair in pairs)
        tokens[f"{name}_labels"], _ = flatten(pair[side].labels for pair in pairs)
        lengths[f"{name}_labels"] = lengths[f"{name}_input_ids"]
        trained += int((tokens[f"{name}_labels"] != IGNORED).sum())
    return Encoded(rows_in, tokens, lengths, columns, dropped, changed, trained)
