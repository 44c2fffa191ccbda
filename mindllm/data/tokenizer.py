"""The tokenizer as the rest of the house sees it, and a light copy of it for worker processes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindllm.data.manifest import read_template_record
from mindllm.errors import UserError, in_one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


def load_tokenizer(path: str | Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load a Hugging Face tokenizer from a local directory; nothing is downloaded.

    Raises:
        UserError: the directory is missing or holds no tokenizer that loads.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise UserError(
            f"tokenizer directory {path} does not exist; give a local one, a name on the Hugging Face Hub is not "
            "downloaded"
        )
    if not any((directory / name).exists() for name in _TOKENIZER_FILES):
        raise UserError(f"{path} holds no tokenizer files; expected tokenizer.json and tokenizer_config.json")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # damaged files surface as many types, down to a bare Exception of the Rust side
        raise UserError(f"the tokenizer in {path} does not load: {in_one_line(error)}") from error
    return tokenizer  # type: ignore[no-any-return, unused-ignore]


def stop_token_ids(
    tokenizer: "PreTrainedTokenizerBase", hf_dir: str | Path, prefixes: Sequence[str | Path] = ()
) -> list[int]:
    """Every token id that ends a response.

    These are the end tokens of the templates that the data at ``prefixes`` was made with, then, sorted, those of
    generation_config.json, config.json and the tokenizer.

    Raises:
        UserError: one of these files, or a manifest, is damaged.
    """
    stated = {token for name in ("generation_config.json", "config.json") for token in _eos_ids(Path(hf_dir) / name)}
    if tokenizer.eos_token_id is not None:
        stated.add(int(tokenizer.eos_token_id))
    return list(dict.fromkeys([*template_end_ids(tokenizer, prefixes), *sorted(stated)]))


def template_end_ids(tokenizer: "PreTrainedTokenizerBase", prefixes: Sequence[str | Path]) -> list[int]:
    """Ids of the tokens that end answers in the templates that the data at ``prefixes`` was made with.

    Raises:
        UserError: a manifest is damaged.
    """
    records = [record for prefix in prefixes if (record := read_template_record(prefix)) is not None]
    tokens = dict.fromkeys(token for record in records for token in record.end_tokens)
    vocabulary = tokenizer.get_vocab() if tokens else {}
    return [vocabulary[token] for token in tokens if token in vocabulary]


def chat_template_of(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """The tokenizer's own chat template (jinja); of several, the one for chats without tools."""
    try:
        found: str = tokenizer.get_chat_template()
    except ValueError:
        return None
    return found


def reads_alike(
    own: "PreTrainedTokenizerBase", actors: "PreTrainedTokenizerBase", prefixes: Sequence[str | Path]
) -> bool:
    """Whether a reward model with the tokenizer ``own`` reads the actor's tokens as its own.

    So it is when both vocabularies are equal, and its chat template, if it has one, is that of the data at ``prefixes``
    (the actor's, for data that does not say).

    Raises:
        UserError: a manifest is damaged.
    """
    records = [read_template_record(prefix) for prefix in prefixes]
    wraps = {record.chat_template if record else chat_template_of(actors) for record in records}
    return own.get_vocab() == actors.get_vocab() and (chat_template_of(own) is None or wraps == {chat_template_of(own)})


def _eos_ids(file: Path) -> list[int]:
    """The ``eos_token_id`` of a JSON file, which may be one or several; [] where there is none."""
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text("utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file}: not a valid JSON object: {error}") from error
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(token) is int for token in ids):
        raise UserError(f"{file}: eos_token_id is {found!r}; a token id or a list of them is needed")
    return ids


@dataclass(frozen=True)
class TokenizerSpec:
    """What encoding needs of a tokenizer, cheap to send to a process that never imports transformers' models."""

    path: str
    backend: str | bytes  # tokenizer.json as text, or a sentencepiece model
    bos: str | None
    eos: str | None
    pad: str | None
    adds_bos: bool  # whether the tokenizer puts its BOS before plain text
    special_tokens: dict[str, Any]  # what a chat template may refer to: bos_token, eos_token, ...
    special_texts: tuple[str, ...]  # every token that is markup and not text, <|im_end|> for one
    chat_template: str | None
    sha256: str
    engine: str = "tokenizers"  # the library that encodes; its ids are the same whichever it is

    @classmethod
    def load(cls, path: str | Path) -> "TokenizerSpec":
        """Read a Hugging Face tokenizer directory.

        Raises:
            UserError: missing, damaged, or without a `tokenizers` backend (tokenizer.json).
        """
        tokenizer = load_tokenizer(path)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(f"the tokenizer in {path} has no tokenizer.json; save it with a fast tokenizer first")
        plain_ids = backend.encode("").ids
        return cls(
            path=str(path),
            backend=backend.to_str(),
            bos=tokenizer.bos_token,
            eos=tokenizer.eos_token,
            pad=tokenizer.pad_token,
            adds_bos=tokenizer.bos_token_id is not None and tokenizer.bos_token_id in plain_ids,
            special_tokens=dict(tokenizer.special_tokens_map),
            special_texts=tuple(
                token.content for token in backend.get_added_tokens_decoder().values() if token.special
            ),
            chat_template=chat_template_of(tokenizer),
            sha256=hash_tokenizer(Path(path)),
        )

    @classmethod
    def load_sentencepiece(cls, path: str | Path) -> "TokenizerSpec":
        """Read a sentencepiece model. It puts no BOS before plain text; a template may.

        Raises:
            UserError: missing or damaged.
        """
        if not Path(path).is_file():
            raise UserError(f"--tokenizer-model {path} does not exist")
        from sentencepiece import SentencePieceProcessor

        model = Path(path).read_bytes()
        try:
            processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"--tokenizer-model {path} is no sentencepiece model: {error}") from error
        named = {
            name: processor.id_to_piece(token_id) if token_id >= 0 else None
            for name, token_id in (
                ("bos_token", processor.bos_id()),
                ("eos_token", processor.eos_id()),
                ("pad_token", processor.pad_id()),
            )
        }
        controls = [token for token in range(processor.get_piece_size()) if processor.is_control(token)]
        return cls(
            path=str(path),
            backend=model,
            bos=named["bos_token"],
            eos=named["eos_token"],
            pad=named["pad_token"],
            adds_bos=False,
            special_tokens={name: token for name, token in named.items() if token},
            special_texts=tuple(processor.id_to_piece(token) for token in controls),
            chat_template=None,
            sha256=hashlib.sha256(model).hexdigest(),
            engine="sentencepiece",
        )


def hash_tokenizer(directory: Path) -> str:
    """sha256 of the tokenizer files of a directory, as manifests record it."""
    digest = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        if (directory / name).exists():
            digest.update(name.encode() + b"\0" + (directory / name).read_bytes())
    return digest.hexdigest()
