"""Prompts for RL: the conversation up to its last user turn, templated once, and columns kept for the rewards."""

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any, Protocol

import numpy as np

from mindllm.data.sidecar import MESSAGES_COLUMN, PROMPT_COLUMN, TOOLS_COLUMN
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers.base import DropRow, Handler, HandlerOptions, PromptShape, Sample
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import Tokenized
from mindllm.templates.messages import Rendered, as_dict

_OWN_COLUMNS = {
    PROMPT_COLUMN: "the text of the last question is kept",
    MESSAGES_COLUMN: "the turns of the prompt are kept",
    TOOLS_COLUMN: "the tools of the prompt are kept",
}


class PromptHandler(Handler):
    """Encodes prompts; subclasses say which row shape they read."""

    keys = ("input_ids",)
    options_used = frozenset({"prompt_overlong", "thinking", "dataset_additional_keys"})
    keeps_columns = True
    shape: PromptShape

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        self._bos_id = self.encoder.token_id(spec.bos) if spec.bos else None

    @classmethod
    def required_columns(cls, options: HandlerOptions) -> list[str]:
        """See `Handler.required_columns`."""
        return [*super().required_columns(options), *(options.dataset_additional_keys or ())]

    def columns_rendered(self, row: Row) -> Container[str]:
        """See `Handler.columns_rendered`."""
        return self.shape.consumed

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        return [Rendered(self.template_for(row).render_prompt(self.shape.prompt(row), self.shape.tools(row)), [])]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`."""
        ids = self._within_limit(texts[0].ids, changed)
        kept = self.kept_columns(row)
        for name, what in _OWN_COLUMNS.items():
            if name in kept and name not in self.shape.consumed:
                raise UserError(
                    f"column '{name}' is not part of the prompt, but {what} under that name; name its role with "
                    "--map-keys, or keep other columns with --dataset-additional-keys"
                )
        return Sample({"input_ids": ids}, {**kept, **self._conversation(row)})

    def _conversation(self, row: Row) -> dict[str, Any]:
        """The last question, and what is more than that."""
        messages, tools = self.shape.prompt(row), self.shape.tools(row)
        columns: dict[str, Any] = {PROMPT_COLUMN: messages[-1].content}
        if len(messages) > 1:
            columns[MESSAGES_COLUMN] = [as_dict(message) for message in messages]
        if tools:
            columns[TOOLS_COLUMN] = [dict(tool) for tool in tools]
        return columns

    def kept_columns(self, row: Row) -> dict[str, Any]:
        """The columns rewards may need: every one that is not part of the prompt, or those asked for."""
        wanted = self.options.dataset_additional_keys
        if wanted is not None:
            return {name: row.values.get(name) for name in wanted}
        return {name: value for name, value in row.values.items() if name not in self.shape.consumed}

    def _within_limit(self, ids: np.ndarray, changed: Counter[str]) -> np.ndarray:
        limit = self.options.seq_length
        if limit is None or len(ids) <= limit:
            return ids
        if self.options.prompt_overlong == "drop":
            raise DropRow("prompt_too_long")
        if self.options.prompt_overlong == "error":
            raise UserError(
                f"the prompt has {len(ids)} tokens, --seq-length allows {limit}; "
                "--prompt-overlong drop or left would pass"
            )
        # Cut on the left: cutting on the right would cut off the header that asks for an answer.
        changed["prompt_cut_left"] += 1
        bos = ids[: int(ids[0] == self._bos_id)]
        return np.concatenate([bos, ids[len(ids) - limit + len(bos) :]])


class AnsweredShape(PromptShape, Protocol):
    """Prompts whose row also says what the right answer is."""

    def reference(self, row: Row) -> str:
        """The right answer. Raises DropRow when there is none."""


class AnsweredPromptHandler(PromptHandler):
    """Prompts with a known answer; kept are the columns of --dataset-additional-keys, or `labels`, the answer."""

    shape: AnsweredShape

    @classmethod
    def required_columns(cls, options: HandlerOptions) -> list[str]:
        """See `Handler.required_columns`. `labels` need not be a column."""
        return [name for name in super().required_columns(options) if name != "labels"]

    def kept_columns(self, row: Row) -> dict[str, Any]:
        """See `PromptHandler.kept_columns`. A column `labels` of the data's own goes before the answer."""
        kept = {}
        for name in self.options.dataset_additional_keys or ("labels",):
            is_answer = name == "labels" and row.values.get(name) is None
            kept[name] = self.shape.reference(row) if is_answer else row.values.get(name)
        return kept
