"""Dialogues for SFT: every answer that the data does not exclude is trained with its end token, nothing else is."""

from collections import Counter
from collections.abc import Sequence

from mindllm.preprocess.handlers.base import DialogueShape, Handler, Sample
from mindllm.preprocess.handlers.limits import fit_dialogue
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import Tokenized
from mindllm.templates.messages import Rendered


class InstructionHandler(Handler):
    """Encodes dialogues; subclasses say which row shape they read."""

    keys = ("input_ids", "labels")
    options_used = frozenset({"overlong", "train_on_history", "thinking", "pack"})
    shape: DialogueShape

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        messages = self.shape.dialogue(row)
        rendered = self.template_for(row).render_dialogue(messages, self.shape.tools(row))
        answers = [message for message in messages if message.role == "assistant"]
        trained = [span for span, answer in zip(rendered.marked, answers, strict=True) if answer.trained]
        if not self.options.train_on_history:
            trained = rendered.marked[-1:] if answers[-1].trained else []
        return [rendered._replace(marked=trained)]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`. Labels stand at the position of their own token (not shifted)."""
        fitted = fit_dialogue(texts[0], self.options, changed)
        return Sample({"input_ids": fitted.ids, "labels": fitted.labels})
