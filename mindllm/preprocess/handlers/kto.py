"""KTO: a prompt, one completion, and whether it is wanted."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindllm.preprocess.handlers.alpaca import PROMPT_COLUMNS, AlpacaRows
from mindllm.preprocess.handlers.base import DropRow, Handler, HandlerOptions, Sample, register_handler
from mindllm.preprocess.handlers.limits import fit_dialogue
from mindllm.preprocess.handlers.turns import ANY_STYLE, answered, mark_answers, read_answer
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import Tokenized
from mindllm.templates.messages import Message, Rendered

_COLUMNS: dict[str, str | None] = {**PROMPT_COLUMNS, "prompt": "prompt", "completion": "completion", "label": "label"}
_LABELS = {"true": True, "1": True, "false": False, "0": False}  # as text, which is all that csv has


class JudgedRows(AlpacaRows):
    """Rows with `prompt`, `completion`, `label` (true = wanted), and if there the other columns of Alpaca's prompts."""

    def __init__(self, options: HandlerOptions) -> None:
        """Bind. Raises UserError as `AlpacaRows`."""
        # No column for the prompt, where the completion repeats it.
        super().__init__(options.map_keys, _COLUMNS, ("completion", "label"))

    def judged(self, row: Row) -> tuple[list[Message], int]:
        """The conversation with its completion, and how many messages come before the completion.

        Raises:
            DropRow: prompt or completion is neither text nor turns, or they do not go together.
        """
        completion = read_answer(self._cell(row, "completion"), "completion", ANY_STYLE)
        return answered(self.prompt_of(row, [completion]), completion, "completion")

    def is_wanted(self, row: Row) -> bool:
        """The row's label. Raises DropRow when it is neither true nor false (nor 1 nor 0)."""
        label = self._cell(row, "label")
        if isinstance(label, str):
            label = _LABELS.get(label.strip().lower(), label)
        if label is None:
            raise DropRow("null_label")
        if label not in (True, False):
            raise DropRow("label_not_a_boolean")
        return bool(label)


@register_handler
class KTOHandler(Handler):
    """Completions for KTO; `kto_tag` holds one number for each sample, 1 = wanted."""

    keys = ("input_ids", "labels", "kto_tag")
    options_used = frozenset({"overlong", "thinking"})
    shape: JudgedRows

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> JudgedRows:
        """See `Handler.make_shape`."""
        return JudgedRows(options)

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        messages, start = self.shape.judged(row)
        return [mark_answers(self.template_for(row).render_dialogue(messages, self.shape.tools(row)), messages, start)]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`."""
        tag = np.array([self.shape.is_wanted(row)], dtype=np.int32)
        fitted = fit_dialogue(texts[0], self.options, changed)
        return Sample({"input_ids": fitted.ids, "labels": fitted.labels, "kto_tag": tag})
