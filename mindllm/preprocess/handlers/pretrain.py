"""Plain text for pretraining: one document a row, nothing masked."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers.alpaca import AlpacaRows
from mindllm.preprocess.handlers.base import Handler, HandlerOptions, Sample, register_handler
from mindllm.preprocess.handlers.cells import mapped, required_text
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import Tokenized
from mindllm.templates.messages import Rendered, Tools


class TextRows:
    """Rows with a column of text."""

    def __init__(self, column: str) -> None:
        self._column = column
        self.required = [column]

    def tools(self, row: Row) -> Tools:
        """None; see `RowShape.tools`."""
        return ()

    def text(self, row: Row) -> str:
        """The row's text. Raises DropRow when there is none."""
        return required_text(row, self._column, "text")


class TextHandler(Handler):
    """Documents as ids, with the EOS after each under --append-eod; subclasses say what a row's text is."""

    keys = ("text",)

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        eos_id = self.encoder.token_id(spec.eos) if options.append_eod and spec.eos else None
        if options.append_eod and eos_id is None:
            raise UserError(f"--append-eod: the tokenizer in {spec.path} has no EOS token")
        self._end = np.array([eos_id] if options.append_eod else [], dtype=np.int32)

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`."""
        return Sample({"text": np.concatenate([texts[0].ids, self._end])})


@register_handler
class GeneralPretrainHandler(TextHandler):
    """A column of text (default: `text`), with the BOS where the tokenizer puts one before plain text."""

    options_used = frozenset({"append_eod"})
    uses_template = False
    shape: TextRows

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        self.adds_bos = spec.adds_bos

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> TextRows:
        """See `Handler.make_shape`."""
        return TextRows(mapped(options.map_keys, {"text": "text"}, ("text",))["text"] or "")

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        return [Rendered(self.shape.text(row), [])]


@register_handler
class AlpacaPretrainHandler(TextHandler):
    """Alpaca dialogues as plain documents, templated."""

    options_used = frozenset({"append_eod", "thinking"})
    shape: AlpacaRows

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> AlpacaRows:
        """See `Handler.make_shape`."""
        return AlpacaRows.for_dialogues(options.map_keys)

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        return [
            self.template_for(row).render_dialogue(self.shape.dialogue(row), self.shape.tools(row))._replace(marked=[])
        ]
