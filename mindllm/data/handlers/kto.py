"""KTO: a prompt, one completion, and whether it is wanted."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindllm.data.encoding import Tokenized
from mindllm.data.handlers.base import DropRow, Handler, HandlerOptions, Sample, register_handler
from mindllm.data.handlers.cells import columns_that_must_exist, mapped, text_cell
from mindllm.data.handlers.limits import fit_dialogue
from mindllm.data.handlers.turns import ANY_STYLE, answered, mark_answers, read_answer, read_prompt
from mindllm.data.messages import Message, Rendered, Tools
from mindllm.data.rows import Row

_REQUIRED = ("prompt", "completion", "label")
_COLUMNS: dict[str, str | None] = {role: role for role in (*_REQUIRED, "system")}


class JudgedRows:
    """Rows with `prompt`, `completion`, `label` (true = wanted), and `system` if there."""

    def __init__(self, options: HandlerOptions) -> None:
        self._columns = mapped(options.map_keys, _COLUMNS, _REQUIRED)
        self.required = columns_that_must_exist(options.map_keys, self._columns, _REQUIRED)

    def tools(self, row: Row) -> Tools:
        """None; see `RowShape.tools`."""
        return ()

    def judged(self, row: Row) -> tuple[list[Message], int]:
        """The conversation with its completion, and how many messages come before the completion.

        Raises:
            DropRow: prompt or completion is neither text nor turns, or they do not go together.
        """
        system = text_cell(row, self._columns["system"], "system")
        prompt = read_prompt(row.values.get(self._columns["prompt"] or ""), "prompt", ANY_STYLE)
        if system and prompt[0].role != "system":
            prompt.insert(0, Message("system", system))
        completion = read_answer(row.values.get(self._columns["completion"] or ""), "completion", ANY_STYLE)
        return answered(prompt, completion, "completion")

    def is_wanted(self, row: Row) -> bool:
        """The row's label. Raises DropRow when it is neither true nor false (nor 1 nor 0)."""
        label = row.values.get(self._columns["label"] or "")
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
        return [mark_answers(self.template.render_dialogue(messages), messages, start)]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`."""
        tag = np.array([self.shape.is_wanted(row)], dtype=np.int32)
        fitted = fit_dialogue(texts[0], self.options, changed)
        return Sample({"input_ids": fitted.ids, "labels": fitted.labels, "kto_tag": tag})
