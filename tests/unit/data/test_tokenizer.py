"""Loading tokenizers, and the ids that stop generation."""

from pathlib import Path

import pytest

from mindllm.data import load_tokenizer, stop_token_ids
from mindllm.data.encoding import TextEncoder
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError


@pytest.mark.parametrize(
    ("generation_config", "expected"),
    [(None, [2]), ('{"eos_token_id": [2, 0]}', [0, 2]), ('{"eos_token_id": 0}', [0, 2]), ("{}", [2])],
)
def test_stop_tokens_are_those_of_generation_config_and_tokenizer(
    tokenizer_dir: Path, tmp_path: Path, generation_config: str | None, expected: list[int]
) -> None:
    if generation_config is not None:
        (tmp_path / "generation_config.json").write_text(generation_config)
    assert stop_token_ids(load_tokenizer(tokenizer_dir), tmp_path) == expected


def test_a_damaged_generation_config_is_named(tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config\.json: not a valid JSON object"):
        stop_token_ids(load_tokenizer(tokenizer_dir), tmp_path)


def test_encoding_equals_the_tokenizers_own(tokenizer_dir: Path, spec: TokenizerSpec) -> None:
    tokenizer = load_tokenizer(tokenizer_dir)
    texts = ["plain", "<|im_start|>user\nmarkers<|im_end|>", "", "😀 unicode e\u0301", " space "]
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert [ids.tolist() for ids in TextEncoder(spec).encode(texts)] == expected


def test_a_spec_tells_whether_the_tokenizer_adds_a_bos(spec: TokenizerSpec, bos_spec: TokenizerSpec) -> None:
    assert (spec.adds_bos, bos_spec.adds_bos) == (False, True)
    assert spec.sha256 != bos_spec.sha256


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer directory .*nowhere does not exist"):
        load_tokenizer(tmp_path / "nowhere")
