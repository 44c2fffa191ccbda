"""Length policies of dialogues."""

from collections import Counter

from mindllm.errors import UserError
from mindllm.preprocess.handlers.base import DropRow, HandlerOptions
from mindllm.preprocess.tokenize.encoding import Tokenized


def fit_dialogue(sample: Tokenized, options: HandlerOptions, changed: Counter[str]) -> Tokenized:
    """The dialogue under `seq_length` and `overlong`; what was changed is counted.

    Raises:
        DropRow: too long, or nothing of it is trained.
        UserError: too long, where that is an error.
    """
    limit = options.seq_length
    if not any(start < end for start, end in sample.marked):
        raise DropRow("nothing_to_train")
    if limit is None or len(sample.ids) <= limit:
        return sample
    if options.overlong == "drop":
        raise DropRow("too_long")
    if options.overlong == "error":
        raise UserError(
            f"the dialogue has {len(sample.ids)} tokens, --seq-length allows {limit}; "
            "--overlong drop or truncate would pass"
        )
    return _truncate(sample, limit, changed)


def _truncate(sample: Tokenized, limit: int, changed: Counter[str]) -> Tokenized:
    """Keep the turns that fit whole; of a first turn that does not fit, cut the answer, if any of it fits."""
    whole = [(start, end) for start, end in sample.marked if end <= limit]
    if whole and any(start < end for start, end in whole):
        dropped_turns = len(sample.marked) - len(whole)
        changed["dialogues_shortened"] += bool(dropped_turns)
        changed["turns_removed"] += dropped_turns
        return Tokenized(sample.ids[: whole[-1][1]], whole)
    start = sample.marked[0][0]
    if start >= limit:
        raise DropRow("prompt_too_long")
    changed["answers_cut"] += 1
    return Tokenized(sample.ids[:limit], [(start, limit)])
