"""Pairs for reward models and DPO: one prompt with a chosen and a rejected answer, each a dialogue of its own."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindllm.data.encoding import Tokenized
from mindllm.data.handlers.base import DropRow, Handler, PairShape, Sample
from mindllm.data.handlers.limits import fit_dialogue
from mindllm.data.messages import Message, Rendered
from mindllm.data.rows import Row

MARGIN_COLUMN = "margin"  # by how much chosen is better; the one column kept, null where a row has none


class PairHandler(Handler):
    """Encodes pairs; of each dialogue only the last answer is trained. Subclasses say which row shape they read."""

    keys = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
    options_used = frozenset({"overlong", "thinking"})
    keeps_columns = True
    shape: PairShape

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        return [self._render(messages, row) for messages in self.shape.pair(row)]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`. Labels stand at the position of their own token (not shifted)."""
        margin = _margin(row)
        chosen, rejected = (fit_dialogue(text, self.options, changed) for text in texts)
        if np.array_equal(chosen.ids, rejected.ids):
            raise DropRow("chosen_equals_rejected")
        arrays = (chosen.ids, chosen.labels, rejected.ids, rejected.labels)
        return Sample(dict(zip(self.keys, arrays, strict=True)), {MARGIN_COLUMN: margin})

    def _render(self, messages: list[Message], row: Row) -> Rendered:
        rendered = self.template.render_dialogue(messages, self.shape.tools(row))
        return rendered._replace(marked=rendered.marked[-1:])


def _margin(row: Row) -> float | None:
    value = row.values.get(MARGIN_COLUMN)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DropRow("margin_not_a_number")
    return float(value)
