"""Scalar heads: one put on a language model, and the Hugging Face config that says a model has one. No torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mindllm.checkpoint.chat_files import read_json
from mindllm.checkpoint.info import Head
from mindllm.errors import UserError
from mindllm.models.families import EMBEDDING_KEY, OUTPUT_KEY, Architecture, Weight, family_of, read_config

if TYPE_CHECKING:
    from mindllm.convert.plan import Dtype, Source
    from mindllm.formats.arrays import Array

HeadInit = Literal["normal", "zeros"]


def choose_head(source_head: Head, wanted: Head | None) -> Head:
    """Return the head of the result. Raises UserError when a vocabulary would have to come from a scalar head."""
    if wanted is None:
        return source_head
    if wanted == "lm" and source_head != "lm":
        raise UserError(f"--head lm: the source has a {source_head} head; the output layer of the language is gone")
    return wanted


class NewHeadSource:
    """A language model's source with a fresh scalar head in place of its output layer.

    The head is normal with the architecture's initial standard deviation, or zero; the same ``seed`` gives the same
    head. Its dtype is that of the embedding.
    """

    def __init__(self, source: "Source", architecture: Architecture, init: HeadInit, seed: int) -> None:
        self.directory = source.directory
        self._source = source
        self._std = 0.0 if init == "zeros" else architecture.init_std
        self._seed = seed
        self._embedding = _weight_of(architecture, EMBEDDING_KEY)

    def dtype(self, weight: Weight) -> "Dtype":
        """Return the dtype of what :meth:`read` returns."""
        return self._source.dtype(self._embedding if _is_head(weight) else weight)

    def read(self, weight: Weight) -> "Array":
        """Return the source's tensor, or the new head ``[1, hidden]``."""
        if not _is_head(weight):
            return self._source.read(weight)
        import torch

        from mindllm.formats.arrays import cast, from_torch

        generator = torch.Generator().manual_seed(self._seed)
        values = torch.randn(weight.mcore_shape, generator=generator) * self._std
        return cast(from_torch(values), self.dtype(weight))

    def origin(self, weight: Weight) -> str:
        """Return how the source calls the weight."""
        return self._source.origin(weight)


def _is_head(weight: Weight) -> bool:
    return weight.mcore == OUTPUT_KEY


def _weight_of(architecture: Architecture, key: str) -> Weight:
    return next(weight for weight in family_of(architecture.family).weights(architecture) if weight.mcore == key)


def restate_head(hf_dir: Path) -> str:
    """Make the ``config.json`` of a language model in ``hf_dir`` say that the model scores with one number.

    Hugging Face finds the last token with ``pad_token_id``: kept, or the tokenizer's, or else the end token; then
    Hugging Face scores the token before it. Returns a line that says which.
    """
    config = read_config(hf_dir)
    family = family_of(config["model_type"])
    config |= {"architectures": [family.scoring_class], "num_labels": 1}
    config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    origin = "config.json"
    if config.get("pad_token_id") is None:
        config["pad_token_id"], origin = _tokenizer_pad_id(hf_dir), "the tokenizer"
    if config["pad_token_id"] is None:
        end = config.get("eos_token_id")
        config["pad_token_id"], origin = end[0] if isinstance(end, list) else end, "the end token, for want of another"
    path = hf_dir / "config.json"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return f"new scalar head; pad_token_id {config['pad_token_id']} ({origin})"


def _tokenizer_pad_id(hf_dir: Path) -> int | None:
    """Return the id of the tokenizer's padding token, if its files name one."""
    token = read_json(hf_dir / "tokenizer_config.json").get("pad_token")
    token = token.get("content") if isinstance(token, dict) else token
    added = read_json(hf_dir / "tokenizer_config.json").get("added_tokens_decoder", {})
    ids = {entry.get("content"): int(key) for key, entry in added.items()}
    tokenizer = read_json(hf_dir / "tokenizer.json")
    ids |= {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", ())}
    return ids.get(token)
