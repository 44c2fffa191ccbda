"""Texts to ids, in bulk, with marked ranges of characters followed to the tokens they became."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.preprocess.tokenize.engines import Engine, build_engine
from mindllm.templates.messages import Rendered

IGNORED = -100  # label of a token that is not trained


class Tokenized(NamedTuple):
    """A text's ids, int32 [length], and its marked ranges as (start, end) token positions."""

    ids: np.ndarray
    marked: list[tuple[int, int]]

    @property
    def labels(self) -> np.ndarray:
        """Its ids where they are marked and -100 elsewhere; a label stands at its own token (not shifted)."""
        labels = np.full(len(self.ids), IGNORED, dtype=np.int32)
        for start, end in self.marked:
            labels[start:end] = self.ids[start:end]
        return labels


class TextEncoder:
    """Text to ids, exactly as the tokenizer's own `encode(text, add_special_tokens=False)`."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec

    @cached_property
    def _engine(self) -> Engine:  # built when it is needed: a second that a process which only checks can do without
        return build_engine(self._spec)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [length]."""
        return self._engine.encode(texts)

    def encode_marked(self, texts: Sequence[Rendered], add_bos: bool = False) -> list[Tokenized]:
        """Each text encoded whole, after the BOS if wanted; a token is marked when it begins in a marked range.

        The BOS is no text here: in front of words, Llama's newer tokenizers would give the first of them other ids.
        """
        borders = [[border for span in text.marked for border in span] for text in texts]
        plain = [text.text for text in texts]
        if not any(borders):
            tokenized = [Tokenized(ids, []) for ids in self.encode(plain)]
        else:
            encoded = self._engine.encode_with_borders(plain, borders)
            tokenized = [Tokenized(ids, list(zip(found[::2], found[1::2], strict=True))) for ids, found in encoded]
        return self._with_bos(texts, tokenized) if add_bos else tokenized

    def encode_split(self, texts: Sequence[Rendered], add_bos: bool = False) -> list[Tokenized]:
        """Each marked range, and each stretch between two, encoded on its own; `add_bos` as for `encode_marked`."""
        pieces = []
        for text, marked, _ in texts:
            borders = [0, *(border for span in marked for border in span), len(text)]
            pieces += [text[start:end] for start, end in pairwise(borders)]
        encoded = iter(self._engine.encode(pieces))
        tokenized = []
        for _, marked, _ in texts:
            parts = [next(encoded) for _ in range(2 * len(marked) + 1)]
            borders = np.cumsum([0, *map(len, parts)]).tolist()
            spans = list(zip(borders[1:-1:2], borders[2:-1:2], strict=True))
            tokenized.append(Tokenized(np.concatenate(parts), spans))
        return self._with_bos(texts, tokenized) if add_bos else tokenized

    def token_id(self, token: str) -> int | None:
        """Id of a token, or None when the vocabulary lacks it."""
        return self._engine.token_id(token)

    def _with_bos(self, texts: Sequence[Rendered], tokenized: list[Tokenized]) -> list[Tokenized]:
        """The BOS before all but those that bring their own; marked ranges move along."""
        bos = self._spec.bos
        bos_id = self.token_id(bos) if bos else None
        if bos is None or bos_id is None:
            return tokenized
        prefix = np.array([bos_id], dtype=np.int32)
        return [
            found
            if text.startswith(bos)
            else Tokenized(np.concatenate([prefix, found.ids]), [(start + 1, end + 1) for start, end in found.marked])
            for (text, *_), found in zip(texts, tokenized, strict=True)
        ]
