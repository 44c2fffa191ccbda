"""What the Hugging Face files of a model say of conversations: where its answers end, how it is prompted. No torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindllm.errors import UserError
from mindllm.models.families import read_config

_TEMPLATE_NAME = "chat_template.jinja"


def add_end_tokens(hf_dir: Path, ends: Sequence[int]) -> None:
    """Make ``config.json`` and ``generation_config.json`` in ``hf_dir`` name all of ``ends`` as end tokens.

    They come first, before those that a file named: some engines read one only. A file that names them already stays
    as it is.
    """
    config = read_config(hf_dir)
    named = _as_list(config.get("eos_token_id"))
    if not set(ends) <= set(named):
        _write(hf_dir / "config.json", config | {"eos_token_id": _joined(ends, named)})
    path = hf_dir / "generation_config.json"
    generation = read_json(path)
    if not path.is_file():  # once it is there, transformers reads none of these in config.json
        generation = {name: config[name] for name in ("bos_token_id", "pad_token_id") if config.get(name) is not None}
    own = _as_list(generation.get("eos_token_id")) or named
    if generation.get("eos_token_id") is None or not set(ends) <= set(own):
        _write(path, generation | {"eos_token_id": _joined(ends, own)})


def set_eos_token(hf_dir: Path, end_tokens: Sequence[str]) -> None:
    """Make the tokenizer in ``hf_dir`` name the first of ``end_tokens`` as its EOS, unless it names one of them."""
    path = hf_dir / "tokenizer_config.json"
    config = read_json(path)
    named = config.get("eos_token")
    if not config or (named["content"] if isinstance(named, dict) else named) in end_tokens:
        return
    _write(path, config | {"eos_token": end_tokens[0]})
    older = hf_dir / "special_tokens_map.json"
    if special := read_json(older):
        _write(older, special | {"eos_token": end_tokens[0]})


def add_chat_template(hf_dir: Path, chat_template: str) -> None:
    """Write ``chat_template`` (jinja) for the tokenizer in ``hf_dir``, unless it has one of its own."""
    path = hf_dir / _TEMPLATE_NAME
    if not path.exists() and not read_json(hf_dir / "tokenizer_config.json").get("chat_template"):
        path.write_text(chat_template, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} where there is no file. Raises UserError when it is broken."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _as_list(ids: Any) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _joined(ends: Sequence[int], others: Sequence[int]) -> int | list[int]:
    ids = list(dict.fromkeys([*ends, *others]))
    return ids if len(ids) > 1 else ids[0]


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
