"""Dialogues for SFT: every answer and its end token is trained, nothing else is."""

from collections import Counter
from collections.abc import Sequence

from mindllm.data.handlers.base import DialogueShape, DropRow, Encoded, Handler, HandlerOptions, flatten, naming
from mindllm.data.handlers.dialogues import IGNORED, DialogueEncoder
from mindllm.data.readers import Row
from mindllm.data.tokenizer import TokenizerSpec


class InstructionHandler(Handler):
    """Encodes dialogues; subclasses say which row shape they read."""

    keys = ("input_ids", "labels")
    limit_option = "overlong"
    shape: DialogueShape

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        self._dialogues = DialogueEncoder(options, self.template, self.encoder)

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
        for row, sample in zip(kept, self._dialogues.tokenize(dialogues), strict=True):
            try:
                with naming(row):
                    samples.append(self._dialogues.fit(sample, changed))
            except DropRow as reason:
                dropped[str(reason)] += 1
        tokens, lengths = flatten(sample.ids for sample in samples)
        labels, _ = flatten(sample.labels for sample in samples)
        trained = int((labels != IGNORED).sum())
        return Encoded(
            len(rows),
            {"input_ids": tokens, "labels": labels},
            {"input_ids": lengths, "labels": lengths},
            [],
            dropped,
            changed,
            trained,
        )
