"""Hugging Face files that say how a trained model is prompted and where it stops, as transformers reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from mindllm.checkpoint import add_chat_template, add_end_tokens, set_eos_token
from mindllm.checkpoint.chat_files import read_json

CONFIG = {"model_type": "llama", "bos_token_id": 1, "pad_token_id": 9}


def write(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> None:
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))


@pytest.mark.parametrize(
    ("config", "generation", "in_config", "in_generation"),
    [
        (3, {"eos_token_id": 3, "temperature": 0.5}, [7, 3], [7, 3]),
        ([3, 4], {"eos_token_id": [3, 4]}, [7, 3, 4], [7, 3, 4]),
        ([3, 4], {}, [7, 3, 4], [7, 3, 4]),  # a list that only config.json has
        (3, None, [7, 3], [7, 3]),
        (None, None, 7, 7),
    ],
)
def test_end_tokens_are_added_before_those_that_are_named(
    config: Any, generation: dict[str, Any] | None, in_config: Any, in_generation: Any, tmp_path: Path
) -> None:
    write(tmp_path, {"eos_token_id": config}, generation)
    add_end_tokens(tmp_path, [7])
    assert read_json(tmp_path / "config.json") == CONFIG | {"eos_token_id": in_config}
    read = GenerationConfig.from_pretrained(tmp_path)
    assert read.eos_token_id == in_generation
    assert read.temperature == (generation or {}).get("temperature")
    if generation is None:
        assert (read.bos_token_id, read.pad_token_id) == (1, 9)


def test_files_that_name_the_end_tokens_stay_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": 7}, {"eos_token_id": [3, 7]})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    add_end_tokens(tmp_path, [7])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("named", [{}, {"eos_token_id": 3}], ids=["no-generation-config", "another-token"])
def test_transformers_stops_at_the_added_end_token(named: dict[str, int], tmp_path: Path) -> None:
    """A model whose greedy response counts upwards, and so would pass 7 on its way to 3."""
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **shape, eos_token_id=3, tie_word_embeddings=False))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(16))
        model.lm_head.weight.copy_(torch.eye(16).roll(1, dims=0))
        for parameter in model.model.layers.parameters():
            parameter.zero_()
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    if named:
        (tmp_path / "generation_config.json").write_text(json.dumps(named))

    def respond() -> list[int]:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        return loaded.generate(torch.tensor([[4]]), do_sample=False, max_new_tokens=6, pad_token_id=0)[0].tolist()

    assert respond() == [4, 5, 6, 7, 8, 9, 10]
    add_end_tokens(tmp_path, [7])
    assert respond() == [4, 5, 6, 7]


def test_a_chat_template_is_added_where_the_tokenizer_has_none(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a"))).save_pretrained(tmp_path)
    added = "{% for message in messages %}{{ message.content }}!{% endfor %}"
    add_chat_template(tmp_path, added)
    messages = [{"role": "user", "content": "a"}]
    assert AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(messages, tokenize=False) == "a!"
    add_chat_template(tmp_path, "another")
    assert (tmp_path / "chat_template.jinja").read_text() == added


def test_a_chat_template_of_the_tokenizers_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "own"}')
    add_chat_template(tmp_path, "another")
    assert not (tmp_path / "chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [(["<turn>", "<doc>"], "<doc>"), (["<turn>"], "<turn>"), (["<turn>", "<call>"], "<turn>")],
)
def test_a_tokenizer_ends_texts_where_the_model_ends_answers(ends: list[str], expected: str, tmp_path: Path) -> None:
    words = {"<doc>": 0, "<turn>": 1, "<call>": 2}
    backend = Tokenizer(WordLevel(words, unk_token="<doc>"))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<doc>", pad_token="<doc>").save_pretrained(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<doc>", "pad_token": "<doc>"}')
    set_eos_token(tmp_path, ends)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token) == (expected, words[expected], "<doc>")
    assert len(tokenizer) == 3
    assert read_json(tmp_path / "special_tokens_map.json")["eos_token"] == expected
