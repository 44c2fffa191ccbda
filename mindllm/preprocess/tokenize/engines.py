"""The libraries that encode: `tokenizers`, `sentencepiece`, and `tiktoken` where it gives the very same ids, faster."""

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError

Borders = Sequence[int]  # character positions of a text, ascending
_LONGEST_FAST_TEXT = 100_000  # characters; longer ones take the slower, sturdier library
_TEXTS_A_CALL = 16  # more at once take longer each: what one call leaves behind should fit into the processor's cache
_CHECKED = 32  # one text in so many is encoded by both libraries


class Engine(Protocol):
    """What `TextEncoder` asks of a library. Ids are int32 [length]."""

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without special tokens but those written in it."""

    def encode_with_borders(
        self, texts: Sequence[str], borders: Sequence[Borders]
    ) -> list[tuple[np.ndarray, list[int]]]:
        """Ids of each text, and for each border the number of tokens that begin before it."""

    def token_id(self, token: str) -> int | None:
        """Id of a token, or None when the vocabulary lacks it."""

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens as they are written."""


def build_engine(spec: TokenizerSpec) -> Engine:
    """The engine a tokenizer asks for."""
    if isinstance(spec.backend, bytes):
        return SentencePieceEngine(spec.backend, spec.special_texts)
    engine = HuggingFaceEngine(spec.backend)
    return TiktokenEngine(json.loads(spec.backend), engine) if spec.engine == "tiktoken" else engine


class HuggingFaceEngine:
    """The `tokenizers` library."""

    def __init__(self, backend: str) -> None:
        from tokenizers import Tokenizer

        self._backend = Tokenizer.from_str(backend)
        self._backend.no_padding()
        self._backend.no_truncation()
        self._content = backend

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Engine.encode`."""
        found: list[np.ndarray] = []
        for start in range(0, len(texts), _TEXTS_A_CALL):
            batch = list(texts[start : start + _TEXTS_A_CALL])
            encodings = self._backend.encode_batch_fast(batch, add_special_tokens=False)
            found += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return found

    def encode_with_borders(
        self, texts: Sequence[str], borders: Sequence[Borders]
    ) -> list[tuple[np.ndarray, list[int]]]:
        """See `Engine.encode_with_borders`."""
        if self._bytes is None:
            return self._by_offsets(texts, borders)
        # Lengths of tokens in bytes say where each begins, for a fraction of what offsets cost.
        results: list[tuple[np.ndarray, list[int]] | None] = []
        for text, ids, wanted in zip(texts, self.encode(texts), borders, strict=True):
            found = self._bytes.locate(text, ids, wanted)
            results.append(None if found is None else (ids, found))
        missing = [number for number, result in enumerate(results) if result is None]
        slow = self._by_offsets([texts[n] for n in missing], [borders[n] for n in missing])
        for number, result in zip(missing, slow, strict=True):
            results[number] = result
        return [result for result in results if result is not None]

    def token_id(self, token: str) -> int | None:
        """See `Engine.token_id`."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def decode(self, ids: list[int]) -> str:
        """See `Engine.decode`."""
        return str(self._backend.decode(ids, skip_special_tokens=False))

    @cached_property
    def _bytes(self) -> "ByteLengths | None":
        return ByteLengths.of(json.loads(self._content))

    def _by_offsets(self, texts: Sequence[str], borders: Sequence[Borders]) -> list[tuple[np.ndarray, list[int]]]:
        results = []
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False) if texts else []
        for encoding, wanted in zip(encodings, borders, strict=True):
            starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
            results.append((np.array(encoding.ids, dtype=np.int32), np.searchsorted(starts, wanted).tolist()))
        return results


class ByteLengths:
    """How many bytes of text each token of a byte-level vocabulary stands for."""

    def __init__(self, lengths: np.ndarray, composes: bool) -> None:
        self._lengths = lengths  # int64 [vocabulary size]
        self._composes = composes  # text is brought into NFC first, so positions in other text are not its own

    @classmethod
    def of(cls, tokenizer: dict[str, Any]) -> "ByteLengths | None":
        """Lengths for the content of a tokenizer.json; None when its tokens are not bytes of the text."""
        normalizer = tokenizer.get("normalizer")
        decoder = tokenizer.get("decoder") or {}
        splitter = tokenizer.get("pre_tokenizer") or {}
        steps = splitter.get("pretokenizers", [splitter])
        if tokenizer["model"].get("type") != "BPE" or decoder.get("type") != "ByteLevel":
            return None
        if normalizer not in (None, {"type": "NFC"}) or any(step.get("add_prefix_space") for step in steps):
            return None
        entries = [(token_id, len(token)) for token, token_id in tokenizer["model"]["vocab"].items()]
        entries += [(added["id"], len(added["content"].encode())) for added in tokenizer["added_tokens"]]
        lengths = np.zeros(1 + max(token_id for token_id, _ in entries), dtype=np.int64)
        for token_id, length in entries:
            lengths[token_id] = length
        return cls(lengths, normalizer is not None)

    def locate(self, text: str, ids: np.ndarray, borders: Borders) -> list[int] | None:
        """For each border the number of tokens that begin before it; None when bytes do not tell."""
        is_ascii = text.isascii()
        if not is_ascii and self._composes and not unicodedata.is_normalized("NFC", text):
            return None
        ends = np.cumsum(self._lengths[ids])
        wanted = list(borders) if is_ascii else _byte_positions(text, borders)
        if (int(ends[-1]) if len(ends) else 0) != (len(text) if is_ascii else len(text.encode())):
            return None  # a token took white space around it along, for one
        starts = ends - self._lengths[ids]
        found: list[int] = np.searchsorted(starts, wanted).tolist()
        return found


def _byte_positions(text: str, borders: Borders) -> list[int]:
    positions, last, total = [], 0, 0
    for border in borders:
        total += len(text[last:border].encode())
        positions.append(total)
        last = border
    return positions


class TiktokenEngine:
    """The `tiktoken` library on a byte-level BPE tokenizer.json, watched: samples are encoded by both libraries."""

    def __init__(self, content: dict[str, Any], reference: HuggingFaceEngine) -> None:
        """Build from the content of a tokenizer.json."""
        import tiktoken

        pattern = tiktoken_pattern(content)
        assert pattern is not None, "checked by pick_engine"
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        byte_of = str.maketrans({character: chr(byte) for byte, character in enumerate(byte_alphabet())})
        ranks = {
            token.translate(byte_of).encode("latin-1"): token_id
            for token, token_id in content["model"]["vocab"].items()
            if token not in added
        }
        # Longest first: where one added token begins another, the longer one is meant.
        specials = dict(sorted(added.items(), key=lambda item: -len(item[0])))
        self._encoding = tiktoken.Encoding("mindllm", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
        self._composes = content.get("normalizer") is not None
        self._bytes = ByteLengths.of(content)
        self._reference = reference
        self._seen = 0

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Engine.encode`.

        Raises:
            UserError: the libraries disagree on a text.
        """
        return [self._encode(text) for text in texts]

    def encode_with_borders(
        self, texts: Sequence[str], borders: Sequence[Borders]
    ) -> list[tuple[np.ndarray, list[int]]]:
        """See `Engine.encode_with_borders`."""
        assert self._bytes is not None, "checked by pick_engine"
        results = []
        for text, wanted in zip(texts, borders, strict=True):
            ids = self._encode(text)
            found = self._bytes.locate(text, ids, wanted)
            results.append(
                (ids, found) if found is not None else self._reference.encode_with_borders([text], [wanted])[0]
            )
        return results

    def token_id(self, token: str) -> int | None:
        """See `Engine.token_id`."""
        return self._reference.token_id(token)

    def decode(self, ids: list[int]) -> str:
        """See `Engine.decode`."""
        return self._reference.decode(ids)

    def _encode(self, text: str) -> np.ndarray:
        if len(text) > _LONGEST_FAST_TEXT:
            return self._reference.encode([text])[0]
        if self._composes and not text.isascii():
            ids = self._encoding.encode_to_numpy(unicodedata.normalize("NFC", text), allowed_special="all")
        else:
            ids = self._encoding.encode_to_numpy(text, allowed_special="all")
        found: np.ndarray = ids.astype(np.int32)
        self._seen += 1
        if self._seen % _CHECKED == 1 and not np.array_equal(found, self._reference.encode([text])[0]):
            raise UserError(f"tiktoken gives other ids than tokenizers for {text[:200]!r}; use --engine tokenizers")
        return found


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies: itself where it prints, else one from 256."""
    printing = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printing else chr(next(others)) for byte in range(256)]


def tiktoken_pattern(tokenizer: dict[str, Any]) -> str | None:
    """The pattern by which a tokenizer.json splits text, or None when tiktoken cannot do as it does."""
    model, splitter = tokenizer["model"], tokenizer.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers", [])
    plain = ByteLengths.of(tokenizer) is not None and not any(
        model.get(key) for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    flagged = any(token[flag] for token in tokenizer["added_tokens"] for flag in ("single_word", "lstrip", "rstrip"))
    if not plain or flagged or [step.get("type") for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, byte_level = steps
    if split["behavior"] != "Isolated" or split["invert"] or byte_level.get("use_regex", True):
        return None
    pattern: str | None = split["pattern"].get("Regex")
    return pattern


class SentencePieceEngine:
    """The `sentencepiece` library, to which control tokens written in a text stand for themselves here."""

    def __init__(self, model: bytes, controls: Sequence[str]) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor = SentencePieceProcessor(model_proto=model)
        self._ids = {control: self._processor.piece_to_id(control) for control in controls}
        longest_first = sorted(controls, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if controls else None

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Engine.encode`."""
        return [ids for ids, _ in self.encode_with_borders(texts, [()] * len(texts))]

    def encode_with_borders(
        self, texts: Sequence[str], borders: Sequence[Borders]
    ) -> list[tuple[np.ndarray, list[int]]]:
        """See `Engine.encode_with_borders`."""
        results = []
        for text, wanted in zip(texts, borders, strict=True):
            ids, starts, position = [], [], 0
            for stretch in self._controls.split(text) if self._controls else [text]:
                if stretch in self._ids:
                    ids.append(self._ids[stretch])
                    starts.append(position)
                elif stretch:
                    found = self._processor.encode(stretch, out_type="offset_mapping")
                    ids += found["ids"]
                    starts += [position + start for start, _ in found["offsets"]]
                position += len(stretch)
            results.append((np.array(ids, dtype=np.int32), np.searchsorted(starts, wanted).tolist()))
        return results

    def token_id(self, token: str) -> int | None:
        """See `Engine.token_id`."""
        found = int(self._processor.piece_to_id(token))
        return None if found == self._processor.unk_id() else found

    def decode(self, ids: list[int]) -> str:
        """See `Engine.decode`."""
        parts: list[str] = []
        for is_control, run in groupby(ids, self._processor.is_control):
            group = list(run)
            parts += map(self._processor.id_to_piece, group) if is_control else [self._processor.decode(group)]
        return "".join(parts)
