"""Prompts for RL: the conversation up to its last user turn, templated once, and columns kept for the rewards."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mindllm.data.handlers.base import DropRow, Encoded, Handler, HandlerOptions, PromptShape, flatten, naming
from mindllm.data.readers import Row
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError

PROMPT_COLUMN = "prompt"  # the raw prompt text in the sidecar


class PromptHandler(Handler):
    """Encodes prompts; subclasses say which row shape they read."""

    keys = ("input_ids",)
    limit_option = "prompt_overlong"
    keeps_columns = True
    shape: PromptShape

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        self._bos_id = self.encoder.token_id(spec.bos) if spec.bos else None

    def encode(self, rows: Sequence[Row]) -> Encoded:
        """See `Handler.encode`."""
        dropped: Counter[str] = Counter()
        changed: Counter[str] = Counter()
        texts, kept = [], []
        for row in rows:
            try:
                with naming(row):
                    texts.append(self.template.render_prompt(self.shape.prompt(row)))
                kept.append(row)
            except DropRow as reason:
                dropped[str(reason)] += 1
        samples, columns = [], []
        for row, ids in zip(kept, self.encoder.encode(texts), strict=True):
            try:
                with naming(row):
                    samples.append(self._within_limit(ids, changed))
                    columns.append(self._kept_columns(row))
            except DropRow as reason:
                dropped[str(reason)] += 1
        tokens, lengths = flatten(samples)
        return Encoded(len(rows), {"input_ids": tokens}, {"input_ids": lengths}, columns, dropped, changed)

    def _within_limit(self, ids: list[int], changed: Counter[str]) -> list[int]:
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
        bos = [ids[0]] if ids[0] == self._bos_id else []
        return bos + ids[len(ids) - limit + len(bos) :]

    def _kept_columns(self, row: Row) -> dict[str, Any]:
        extra = {name: value for name, value in row.values.items() if name not in self.shape.consumed}
        if PROMPT_COLUMN in extra and PROMPT_COLUMN not in (self.options.map_keys or {}).values():
            raise UserError(
                f"column '{PROMPT_COLUMN}' is not mapped, but the raw prompt text is kept under that name; "
                "map it with --map-keys or rename it"
            )
        return {**extra, PROMPT_COLUMN: self.shape.prompt_text(row)}
