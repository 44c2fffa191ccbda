"""Dialogues for SFT: every answer and its end token is trained, nothing else is."""

from collections import Counter
from collections.abc import Sequence

from mindllm.data.encoding import Tokenized
from mindllm.data.handlers.base import DialogueShape, Handler, Sample
from mindllm.data.handlers.limits import fit_dialogue
from mindllm.data.messages import Rendered
from mindllm.data.rows import Row


class InstructionHandler(Handler):
    """Encodes dialogues; subclasses say which row shape they read."""

    keys = ("input_ids", "labels")
    options_used = frozenset({"overlong", "train_on_history", "thinking", "pack"})
    shape: DialogueShape

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        text, marked = self.template.render_dialogue(self.shape.dialogue(row), self.shape.tools(row))
        return [Rendered(text, marked if self.options.train_on_history else marked[-1:])]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`. Labels stand at the position of their own token (not shifted)."""
        fitted = fit_dialogue(texts[0], self.options, changed)
        return Sample({"input_ids": fitted.ids, "labels": fitted.labels})
