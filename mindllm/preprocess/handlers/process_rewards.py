"""Process rewards: a solution whose steps end with a placeholder token, each judged by a reward token."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.handlers.base import DropRow, Handler, HandlerOptions, Sample, register_handler
from mindllm.preprocess.handlers.cells import columns_that_must_exist, mapped, required_text
from mindllm.preprocess.inputs.rows import Row
from mindllm.preprocess.tokenize.encoding import IGNORED, Tokenized
from mindllm.templates.messages import Rendered, Tools


class StepRows:
    """Rows with a text (`input`) and the judgements of its steps (`value`: a list, or the text with them put in)."""

    def __init__(self, options: HandlerOptions) -> None:
        roles = ("input", "value")
        columns = mapped(options.map_keys, {role: role for role in roles}, roles)
        self.required = columns_that_must_exist(options.map_keys, columns, roles)
        self._input, self._value = columns["input"], columns["value"] or ""
        self._placeholder = options.placeholder_token or ""

    def tools(self, row: Row) -> Tools:
        """None; see `RowShape.tools`."""
        return ()

    def text(self, row: Row) -> str:
        """The text with its placeholders. Raises DropRow when there is none."""
        return required_text(row, self._input, "input")

    def judgements(self, row: Row) -> list[str]:
        """One reward token for each placeholder. Raises DropRow when they do not fit."""
        value = row.values.get(self._value)
        steps = self.text(row).split(self._placeholder)
        if isinstance(value, str):
            value = _put_in(steps, value)
        if not isinstance(value, list) or not all(isinstance(judgement, str) for judgement in value):
            raise DropRow("invalid_value")
        if len(value) != len(steps) - 1:
            raise DropRow("steps_and_values_differ")
        return [judgement.strip() for judgement in value]


def _put_in(steps: list[str], text: str) -> Any:
    """What stands in `text` where `steps` are parted; None when it is not the same text."""
    found, position = [], len(steps[0])
    if not text.startswith(steps[0]):
        return None
    for step in steps[1:]:
        end = text.find(step, position) if step else len(text)
        if end < 0:
            return None
        found.append(text[position:end])
        position = end + len(step)
    return found


@register_handler
class AlpacaStyleProcessRewardHandler(Handler):
    """Steps for process reward models: the label of a placeholder is the id of its reward token, all else is -100."""

    keys = ("input_ids", "labels")
    options_used = frozenset({"overlong", "placeholder_token", "reward_tokens"})
    uses_template = False
    shape: StepRows

    def __init__(self, options: HandlerOptions, spec: TokenizerSpec) -> None:
        super().__init__(options, spec)
        if not options.placeholder_token or not options.reward_tokens:
            raise UserError(f"{options.handler} needs --placeholder-token and --reward-tokens")
        if options.overlong == "truncate":
            raise UserError(f"--overlong truncate is not for {options.handler}; use drop or error")
        self._placeholder = options.placeholder_token
        # Within a text, and at the end of a step, where a space before it would make it another token.
        self._placeholder_id = self._single_token(options.placeholder_token)
        self._reward_ids = {token: self._single_token(token) for token in options.reward_tokens}

    @classmethod
    def make_shape(cls, options: HandlerOptions) -> StepRows:
        """See `Handler.make_shape`."""
        return StepRows(options)

    def render(self, row: Row) -> list[Rendered]:
        """See `Handler.render`."""
        text, marked, position = self.shape.text(row), [], 0
        while (position := text.find(self._placeholder, position)) >= 0:
            marked.append((position, position + len(self._placeholder)))
            position += len(self._placeholder)
        if not marked:
            raise DropRow("nothing_to_train")
        return [Rendered(text, marked)]

    def finish(self, row: Row, texts: Sequence[Tokenized], changed: Counter[str]) -> Sample:
        """See `Handler.finish`."""
        judgements = self.shape.judgements(row)
        unknown = [judgement for judgement in judgements if judgement not in self._reward_ids]
        if unknown:
            raise DropRow("unknown_reward_token")
        ids, marked = texts[0]
        labels = np.full(len(ids), IGNORED, dtype=np.int32)
        places = np.flatnonzero(ids == self._placeholder_id)
        if len(places) != len(judgements):
            raise DropRow("placeholder_not_a_token_of_its_own")
        labels[places] = [self._reward_ids[judgement] for judgement in judgements]
        limit = self.options.seq_length
        if limit is not None and len(ids) > limit:
            if self.options.overlong == "error":
                raise UserError(f"the text has {len(ids)} tokens, --seq-length allows {limit}")
            raise DropRow("too_long")
        return Sample({"input_ids": ids, "labels": labels})

    def _single_token(self, text: str) -> int:
        """The one token a text is, after a space if need be (as it stands in texts)."""
        for candidate in (text, f" {text}"):
            ids = self.encoder.encode([candidate])[0]
            if len(ids) == 1:
                return int(ids[0])
        raise UserError(f"'{text}' is not one token of the tokenizer; choose another token")
