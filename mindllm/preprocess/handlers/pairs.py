"""Pairs for reward models and DPO: one prompt with a chosen and a rejected answer, each a dialogue of its own."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindllm.preprocess.handlers.base import DropRow, Handler, PairShape, Sample
from mindllm.preprocess.handlers.limits import fit_dialogue
from mindllm.preprocess.handlers.turns import mark_answers, num_shared
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import Tokenized
from mindllm.templates.messages import Rendered

MARGIN_COLUMN = "margin"  # by how much chosen is better; the one column kept, null where a row has none


class PairHandler(Handler):
    """Encodes pairs; of each dialogue the answers are trained that come after what both have in common, in most data
    one. Subclasses say which row shape they read.
    """

    keys = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
    options_used = frozenset({"overlong", "thinking"})
    keeps_columns = True
    shape: PairShape

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        chosen, rejected = self.shape.pair(row)
        shared = num_shared(chosen, rejected)
        if shared == len(chosen) == len(rejected):
            raise DropRow("chosen_equals_rejected")
        if not any(message.role == "user" for message in chosen[:shared]):
            raise DropRow("chosen_and_rejected_have_different_prompts")
        tools = self.shape.tools(row)
        template = self.template_for(row)
        return [mark_answers(template.render_dialogue(side, tools), side, shared) for side in (chosen, rejected)]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`. Labels stand at the position of their own token (not shifted)."""
        margin = _margin(row)
        chosen, rejected = (fit_dialogue(text, self.options, changed) for text in texts)
        if np.array_equal(chosen.ids, rejected.ids):
            raise DropRow("chosen_equals_rejected")
        arrays = (chosen.ids, chosen.labels, rejected.ids, rejected.labels)
        return Sample(dict(zip(self.keys, arrays, strict=True)), {MARGIN_COLUMN: margin})


def _margin(row: Row) -> float | None:
    value = row.values.get(MARGIN_COLUMN)
    if isinstance(value, str):  # all that csv has
        try:
            value = float(value) if value.strip() else None
        except ValueError as error:
            raise DropRow("margin_not_a_number") from error
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DropRow("margin_not_a_number")
    return float(value)
