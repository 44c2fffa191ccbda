"""Which library encodes: the fast one only where it is proved to give the same ids."""

import importlib.util
import json
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.tokenize.engines import HuggingFaceEngine, TiktokenEngine, tiktoken_pattern

EngineChoice = Literal["auto", "tokenizers", "tiktoken"]
_WORTH_CHECKING = 50_000  # rows; the check takes a few seconds


def pick_engine(spec: TokenizerSpec, choice: EngineChoice, num_rows: int) -> TokenizerSpec:
    """The tokenizer with the engine that is to encode `num_rows` rows.

    Raises:
        UserError: tiktoken was asked for, but is not installed or does not give the same ids.
    """
    if isinstance(spec.backend, bytes):
        if choice == "tiktoken":
            raise UserError("--engine tiktoken does not encode sentencepiece models")
        return spec
    if choice == "tokenizers" or (choice == "auto" and num_rows < _WORTH_CHECKING):
        return spec
    problem = why_not_tiktoken(spec.backend)
    if problem is None:
        return replace(spec, engine="tiktoken")
    if choice == "tiktoken":
        raise UserError(f"--engine tiktoken: {problem}; use --engine tokenizers")
    return spec


def why_not_tiktoken(backend: str) -> str | None:
    """Why tiktoken must not encode for a tokenizer.json, or None.

    Compared are the ids of every kind of character between letters, digits, spaces and line ends, and of every added
    token; while it encodes the engine goes on comparing samples.
    """
    if importlib.util.find_spec("tiktoken") is None:
        return "tiktoken is not installed (pip install tiktoken)"
    content = json.loads(backend)
    if tiktoken_pattern(content) is None:
        return "it cannot do what this tokenizer does"
    if not _merges_follow_ids(content["model"]):
        return "it merges in the order of ids, which is not the order of this tokenizer's merges"
    reference = HuggingFaceEngine(backend)
    try:
        fast = TiktokenEngine(content, reference)
        added = [token["content"] for token in content["added_tokens"]]
        texts = [*_texts_of_all_characters(), *(f"a{token} {token}{token}\n{token}1" for token in added)]
        if all(map(np.array_equal, fast.encode(texts), reference.encode(texts))):
            return None
    except (ValueError, KeyError) as error:
        return f"it does not take this tokenizer: {error}"
    except UserError:
        pass  # the engine itself saw other ids
    return "it gives other ids than tokenizers"


def _merges_follow_ids(model: dict[str, Any]) -> bool:
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    ids = [model["vocab"].get("".join(merge), -1) for merge in merges]
    return all(first <= second for first, second in pairwise(ids))


def _texts_of_all_characters(chunk: int = 256) -> Iterator[str]:
    characters = [
        character
        for number, character in enumerate(map(chr, range(sys.maxunicode + 1)))
        if unicodedata.category(character) not in ("Cn", "Co", "Cs")
        # A hundred thousand ideographs and syllables are all alike to the patterns: a sample of them will do.
        and (number % 16 == 0 or not unicodedata.name(character, "").startswith(("CJK UNIFIED", "HANGUL SYLLABLE")))
    ]
    for start in range(0, len(characters), chunk):
        yield "".join(f"x{c}y {c}{c}1{c}\n '{c}" for c in characters[start : start + chunk])
