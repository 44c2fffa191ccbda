"""Engines: equal ids, and marked ranges that land on the right tokens whichever way they are found."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.tokenize.encoding import TextEncoder
from mindllm.preprocess.tokenize.engines import ByteLengths, HuggingFaceEngine, TiktokenEngine, tiktoken_pattern
from mindllm.preprocess.tokenize.pick_engine import pick_engine, why_not_tiktoken
from mindllm.templates.messages import Rendered

TEXTS = [
    "plain text, with the quick brown fox",
    "<|im_start|>user\nmarkers<|im_end|>",
    "",
    "😀👩‍👩‍👧 emoji é and e\u0301 decomposed",
    "مرحبا שלום 你好",
    "  spaces\t\r\n\r\n and\u00a0more  ",
    "nul \x00 inside",
    "x" * 3000,
]
needs_tiktoken = pytest.mark.skipif(
    importlib.util.find_spec("tiktoken") is None, reason="tiktoken is not installed: pip install tiktoken"
)


def every_border(text: str) -> list[int]:
    return list(range(0, len(text) + 1, 1 + len(text) // 50))


def test_lengths_in_bytes_tell_what_offsets_tell(spec: TokenizerSpec) -> None:
    assert isinstance(spec.backend, str)
    engine = HuggingFaceEngine(spec.backend)
    borders = [every_border(text) for text in TEXTS]
    fast, slow = engine.encode_with_borders(TEXTS, borders), engine._by_offsets(TEXTS, borders)
    for text, wanted, (ids, found), (other_ids, expected) in zip(TEXTS, borders, fast, slow, strict=True):
        assert np.array_equal(ids, other_ids)
        # Where a border cuts a character's bytes apart the two may differ by the tokens of that character.
        plain = [n for n, border in enumerate(wanted) if text[:border].isascii()]
        assert [found[n] for n in plain] == [expected[n] for n in plain]


def test_text_that_is_composed_first_is_located_by_offsets(spec: TokenizerSpec) -> None:
    assert isinstance(spec.backend, str)
    lengths = ByteLengths.of(json.loads(spec.backend))
    assert lengths is not None
    assert lengths.locate("e\u0301", HuggingFaceEngine(spec.backend).encode(["e\u0301"])[0], [0]) is None
    text = Rendered("e\u0301 the answer", [(3, 13)])
    (tokenized,) = TextEncoder(spec).encode_marked([text])
    (start, end) = tokenized.marked[0]
    assert end == len(tokenized.ids) and start > 0


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": {"type": "WordPiece"}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
    ],
)
def test_tokenizers_whose_tokens_are_not_bytes_of_the_text_are_known(spec: TokenizerSpec, change: dict) -> None:
    assert isinstance(spec.backend, str)
    content = {**json.loads(spec.backend), **change}
    assert ByteLengths.of(content) is None and tiktoken_pattern(content) is None


@needs_tiktoken
def test_tiktoken_gives_the_same_ids_and_borders(spec: TokenizerSpec) -> None:
    assert isinstance(spec.backend, str)
    reference = HuggingFaceEngine(spec.backend)
    engine = TiktokenEngine(json.loads(spec.backend), reference)
    borders = [every_border(text) for text in TEXTS]
    ours, theirs = engine.encode_with_borders(TEXTS, borders), reference.encode_with_borders(TEXTS, borders)
    for (ids, found), (other_ids, expected) in zip(ours, theirs, strict=True):
        assert np.array_equal(ids, other_ids) and found == expected


@needs_tiktoken
def test_tiktoken_is_taken_where_it_is_proved_equal_and_worth_it(spec: TokenizerSpec) -> None:
    assert pick_engine(spec, "auto", 10).engine == "tokenizers"
    assert pick_engine(spec, "tokenizers", 10**6).engine == "tokenizers"
    assert isinstance(spec.backend, str)
    assert (why_not_tiktoken(spec.backend) is None) == (pick_engine(spec, "auto", 10**6).engine == "tiktoken")


@needs_tiktoken
def test_tiktoken_is_refused_where_ids_differ(spec: TokenizerSpec) -> None:
    assert isinstance(spec.backend, str)
    content = json.loads(spec.backend)
    content["model"]["merges"] = content["model"]["merges"][5:]  # merges that the vocabulary still has tokens for
    other = replace(spec, backend=json.dumps(content))
    assert pick_engine(other, "auto", 10**6).engine == "tokenizers"
    with pytest.raises(UserError, match="it gives other ids than tokenizers; use --engine tokenizers"):
        pick_engine(other, "tiktoken", 10)
    content["model"]["merges"].reverse()
    with pytest.raises(UserError, match="not the order of this tokenizer's merges"):
        pick_engine(replace(spec, backend=json.dumps(content)), "tiktoken", 10)
    lowered = json.dumps({**content, "normalizer": {"type": "Lowercase"}})
    with pytest.raises(UserError, match="it cannot do what this tokenizer does; use --engine tokenizers"):
        pick_engine(replace(spec, backend=lowered), "tiktoken", 10)


def sentencepiece_spec(directory: Path) -> TokenizerSpec:
    import sentencepiece

    (directory / "corpus.txt").write_text("the quick brown fox answers questions in tags\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "corpus.txt"),
        model_prefix=str(directory / "small"),
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        control_symbols=["[INST]"],
        minloglevel=2,
    )
    return TokenizerSpec.load_sentencepiece(directory / "small.model")


def test_a_sentencepiece_model_encodes_text_and_control_tokens(tmp_path: Path) -> None:
    spec = sentencepiece_spec(tmp_path)
    encoder = TextEncoder(spec)
    assert (spec.bos, spec.eos, spec.adds_bos) == ("<s>", "</s>", False)
    bos, eos, inst = (encoder.token_id(token) for token in ("<s>", "</s>", "[INST]"))
    text = "<s>[INST]the é😀 fox</s>"
    (tokenized,) = encoder.encode_marked([Rendered(text, [(len("<s>[INST]the "), len(text))])])
    ids = tokenized.ids.tolist()
    assert ids[:2] == [bos, inst] and ids[-1] == eos and ids.count(eos) == 1
    start, end = tokenized.marked[0]
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "small.model"))
    assert processor.decode(ids[start:end]) == "é😀 fox" and end == len(ids)
    with pytest.raises(UserError, match="does not encode sentencepiece models"):
        pick_engine(spec, "tiktoken", 10)


@pytest.mark.parametrize(("content", "message"), [(None, "does not exist"), (b"no model", "is no sentencepiece model")])
def test_a_broken_sentencepiece_model_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(UserError, match=rf"a\.model {message}"):
        TokenizerSpec.load_sentencepiece(tmp_path / "a.model")
