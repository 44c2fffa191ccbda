"""Finding the family of a model by name or by its ``config.json``."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mindllm.errors import UserError, did_you_mean
from mindllm.models.families.architecture import Architecture
from mindllm.models.families.baichuan import BAICHUAN
from mindllm.models.families.base import Family
from mindllm.models.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from mindllm.models.families.internlm2 import INTERNLM2
from mindllm.models.families.llama import LLAMA
from mindllm.models.families.mistral import MISTRAL
from mindllm.models.families.mixtral import MIXTRAL
from mindllm.models.families.phi3 import PHI3
from mindllm.models.families.qwen2 import QWEN2
from mindllm.models.families.qwen2_moe import QWEN2_MOE
from mindllm.models.families.qwen3 import QWEN3
from mindllm.models.families.qwen3_moe import QWEN3_MOE
from mindllm.models.families.seed_oss import SEED_OSS

_DENSE = (LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, INTERNLM2, BAICHUAN, SEED_OSS)
_MOE = (QWEN2_MOE, QWEN3_MOE, MIXTRAL, DEEPSEEK_V2, DEEPSEEK_V3)
FAMILIES = {family.name: family for family in (*_DENSE, *_MOE)}

# What megatron-core 0.16's GPTModel lacks for families that people ask for.
_NOT_EXPRESSIBLE = {
    "gemma2": "it caps attention scores and logits and scales embeddings",
    "gemma3": "it scales embeddings and normalises the output of every block",
    "gemma3_text": "it scales embeddings and normalises the output of every block",
    "olmo2": "it normalises the output of blocks, not their input, and queries and keys over all heads at once",
    "granite": "it multiplies embeddings, residuals and logits by factors",
    "glm4": "it normalises the output of every block besides its input",
}


def family_of(name: str) -> Family:
    """Return the family called ``name``, which is Hugging Face's ``model_type``. Raises UserError for others."""
    if name in _NOT_EXPRESSIBLE:
        raise UserError(f"model family '{name}' is not supported by megatron-core: {_NOT_EXPRESSIBLE[name]}")
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(f"model family '{name}' is not known; known are {known}{did_you_mean(name, FAMILIES)}")
    return FAMILIES[name]


def read_config(directory: str | Path) -> dict[str, Any]:
    """Return the parsed ``config.json`` of a model directory. Raises UserError when there is none or it is broken."""
    path = Path(directory) / "config.json"
    if not path.is_file():
        if (path.parent / "adapter_config.json").is_file():
            raise UserError(f"{directory} is an adapter; load the model that it was trained for, and add --lora-load")
        reason = "has no config.json" if path.parent.is_dir() else "is not a directory"
        raise UserError(f"{directory} {reason}; a Hugging Face model directory is needed")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UserError(f"{path} has no model_type; a Hugging Face model config is needed")
    return config


def load_architecture(directory: str | Path, ignored_fields: Collection[str] = ()) -> Architecture:
    """Return the architecture of the Hugging Face model in ``directory``, read from its ``config.json``.

    ``ignored_fields`` are fields that no family knows and that are read as if they were not there.

    Raises UserError, naming the file and the field, when the model is not one that this package can represent.
    """
    config = read_config(directory)
    source = str(Path(directory) / "config.json")
    try:
        family = family_of(config["model_type"])
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return family.parse(config, source, ignored_fields)
