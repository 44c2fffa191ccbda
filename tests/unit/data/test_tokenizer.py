"""Loading tokenizers, and the ids that stop generation."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mindllm.data import load_tokenizer, stop_token_ids, template_end_ids
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.errors import UserError
from mindllm.preprocess.run import PreprocessOptions, preprocess
from mindllm.preprocess.tokenize.encoding import TextEncoder


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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config.json": '{"eos_token_id": [5, 0]}'}, [0, 2, 5]),
        ({"config.json": '{"eos_token_id": [5, 0]}', "generation_config.json": "{}"}, [0, 2, 5]),
        ({"config.json": '{"eos_token_id": 5}', "generation_config.json": '{"eos_token_id": [6]}'}, [2, 5, 6]),
        ({"config.json": '{"eos_token_id": null}'}, [2]),
    ],
)
def test_stop_tokens_that_only_config_json_names_count(
    tokenizer_dir: Path, tmp_path: Path, files: dict[str, str], expected: list[int]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert stop_token_ids(load_tokenizer(tokenizer_dir), tmp_path) == expected


@pytest.mark.parametrize(("answer", "end"), [("<|eot_id|>", 6), ("<|im_end|>\\n", 2), ("{eos}", 2)])
def test_the_end_token_of_the_template_is_a_stop_token(
    tokenizer_dir: Path, tmp_path: Path, write_jsonl: Callable[..., Path], answer: str, end: int
) -> None:
    """<|eot_id|> has id 6; the model itself names <|im_end|>, id 2, and <|endoftext|>, id 0."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    (tmp_path / "own.yaml").write_text(f'user: "{{content}}"\nheader: ":"\nanswer: "{{content}}{answer}"\n')
    source, handler = str(write_jsonl([{"instruction": "a"}])), "PPOAlpacaStyleInstructionHandler"
    prefix, template = tmp_path / "rl", str(tmp_path / "own.yaml")
    preprocess(PreprocessOptions([source], prefix, tokenizer_dir, handler, prompt_type=template))
    tokenizer = load_tokenizer(tokenizer_dir)
    assert stop_token_ids(tokenizer, tmp_path, [prefix]) == list(dict.fromkeys([end, 0, 2]))
    assert template_end_ids(tokenizer, [prefix, prefix]) == [end]


def test_an_end_token_that_is_no_id_is_named_with_its_file(tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(
        UserError, match=r"config\.json: eos_token_id is '</s>'; a token id or a list of them is needed"
    ):
        stop_token_ids(load_tokenizer(tokenizer_dir), tmp_path)


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
