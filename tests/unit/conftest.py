"""What unit tests share: a byte-level BPE tokenizer with the markers of ChatML and Llama 3, and a tiny qwen2 model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindllm.convert import convert_hf_to_mcore
from mindllm.data.tokenizer import TokenizerSpec
from mindllm.preprocess.handlers import Encoded, Handler, HandlerOptions, base, build_handler
from mindllm.preprocess.inputs.rows import Row
from tests.unit.convert.tiny_models import make_hf_model

MARKERS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "the quick brown fox sorts four digits and answers in tags",
    "user system assistant question answer You are a helpful assistant.",
    "You are Qwen, created by Alibaba Cloud. 0 1 2 3 4 5 6 7 8 9",
]


@pytest.fixture(autouse=True)
def _own_handlers_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def make_tokenizer(directory: Path, bos: bool, chat_template: str | None) -> Path:
    """Write a tokenizer directory; with `bos` it puts <|begin_of_text|> before plain text, as Llama's does."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+(?!\S)| ?[^\s]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", *MARKERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    names = {"eos_token": "<|im_end|>"}
    if bos:
        names = {"eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>"}
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
        )
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    if chat_template:
        config["chat_template"] = chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without BOS, with a ChatML chat template, as Qwen's."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizers") / "chatml", bos=False, chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def bos_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With BOS, without a chat template, as a Llama base model's."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizers") / "bos", bos=True, chat_template=None)


@pytest.fixture(scope="session")
def spec(tokenizer_dir: Path) -> TokenizerSpec:
    """The tokenizer without BOS."""
    return TokenizerSpec.load(tokenizer_dir)


@pytest.fixture(scope="session")
def bos_spec(bos_tokenizer_dir: Path) -> TokenizerSpec:
    """The tokenizer with BOS."""
    return TokenizerSpec.load(bos_tokenizer_dir)


@pytest.fixture
def encode(spec: TokenizerSpec) -> Callable[..., Encoded]:
    """`encode(handler, *rows, **options)` with the tokenizer without BOS."""

    def run(handler: str, *rows: dict[str, Any], prompt_type: str = "chatml", **options: Any) -> Encoded:
        built: Handler = build_handler(HandlerOptions(handler, prompt_type, **options), spec)
        return built.encode([Row("rows.jsonl", number, values) for number, values in enumerate(rows, 1)])

    return run


@pytest.fixture
def decode(tokenizer_dir: Path) -> Callable[[Any], str]:
    """Ids back to text, markers included."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """`write_jsonl(rows, name)` in this test's directory."""

    def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture(scope="session")
def hf_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied fp32 qwen2 model in one file. Read only."""
    return make_hf_model(tmp_path_factory.mktemp("hf") / "qwen2", "qwen2")


@pytest.fixture(scope="session")
def mcore_qwen2(hf_qwen2: Path) -> Path:
    """The same model converted. Read only."""
    convert_hf_to_mcore(hf_qwen2, hf_qwen2.parent / "mcore")
    return hf_qwen2.parent / "mcore"
