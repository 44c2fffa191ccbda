"""--preview: how the first rows become tokens and labels, shown and not written."""

import json
from itertools import groupby, islice

import numpy as np

from mindllm.preprocess.handlers import build_handler
from mindllm.preprocess.output.parts import ID_KEYS
from mindllm.preprocess.run import PreparedRun
from mindllm.preprocess.tokenize.encoding import IGNORED
from mindllm.preprocess.tokenize.engines import Engine, build_engine

_GREEN, _BOLD, _PLAIN = "\033[32m", "\033[1m", "\033[0m"
_MOST_IDS = 64  # of a text, shown as numbers


def preview(run: PreparedRun, count: int, colour: bool) -> str:
    """The first `count` rows, each with its text, ids, labels and the columns kept.

    Trained text is green, or without `colour` stands between » and «.
    """
    handler = build_handler(run.job.options, run.job.spec)
    engine = build_engine(run.job.spec)
    lines = []
    for row in islice(run.files.rows(0, run.files.total), count):
        heading = f"{_BOLD}{row.where}{_PLAIN}" if colour else row.where
        lines.append(f"{heading}  {json.dumps(row.values, ensure_ascii=False, default=str)}")
        encoded = handler.encode([row])
        lines += [f"  dropped: {reason}" for reason in encoded.dropped]
        if len(encoded.kept):
            lines += [line for key in encoded.tokens for line in _shown(key, encoded.tokens, engine, colour)]
        lines += [f"  columns    {json.dumps(columns, ensure_ascii=False, default=str)}" for columns in encoded.columns]
        lines.append("")
    return "\n".join(lines)


def _shown(key: str, tokens: dict[str, np.ndarray], engine: Engine, colour: bool) -> list[str]:
    ids = tokens[key]
    if not key.endswith(ID_KEYS):
        return [f"  {key:10} {_numbers(ids)}"]
    labels = tokens.get(f"{key.removesuffix('input_ids')}labels", np.full(len(ids), IGNORED))
    text, position = "", 0
    for is_trained, run in groupby((labels != IGNORED).tolist()):
        length = len(list(run))
        piece = engine.decode(ids[position : position + length].tolist()).replace("\n", "\\n")
        opening, closing = (_GREEN, _PLAIN) if colour else ("»", "«")
        text += f"{opening}{piece}{closing}" if is_trained else piece
        position += length
    return [f"  text       {text}", f"  {key:10} {_numbers(ids)}"]


def _numbers(ids: np.ndarray) -> str:
    shown = " ".join("-" if number == IGNORED else str(number) for number in ids[:_MOST_IDS].tolist())
    return f"{shown} ... ({len(ids)} in all)" if len(ids) > _MOST_IDS else shown
