"""What lies beside the tensors of a checkpoint: iteration tracker, Hugging Face files, ``mindllm.json``. No torch."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mindllm.errors import UserError
from mindllm.models.families import Architecture, dtype_name, family_of, fp8_block, load_architecture, read_config

TRACKER_NAME = "latest_checkpointed_iteration.txt"
INFO_NAME = "mindllm.json"
FORMAT_VERSION = 1
Head = Literal["lm", "reward", "value"]
HEADS: tuple[Head, ...] = get_args(Head)
_RELEASE = "release"  # Megatron's name for the one iteration of a converted model

_HF_PATTERNS = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.tiktoken", "sentencepiece*.model", "spiece.model"),
    *("chat_template*", "additional_chat_templates", "LICENSE*", "NOTICE*"),
)


def default_head(architecture: Architecture) -> Head:
    """Return what a head is called where nobody said: Hugging Face does not tell a reward model from a critic."""
    return "reward" if architecture.scalar_head else "lm"


@dataclass(frozen=True)
class CheckpointInfo:
    """One iteration of a checkpoint, as far as it is known without reading tensors.

    ``padded_vocab_size`` is the number of vocabulary rows that the writer of the checkpoint used; ``dtype`` names the
    dtype of the weights on disk; ``hf_dir`` holds ``config.json`` and the tokenizer. ``head`` is ``lm``, or ``reward``
    or ``value`` for a model that scores tokens with one number (``architecture.scalar_head``). ``config.json`` is
    read as if its ``ignored_config_fields`` were not there.
    """

    architecture: Architecture
    vocab_size: int
    padded_vocab_size: int
    dtype: str
    hf_dir: Path
    head: Head
    ignored_config_fields: tuple[str, ...] = ()


def iteration_dir(directory: str | Path, iteration: int) -> Path:
    """Return the directory of ``iteration`` under a checkpoint directory, whether or not it exists."""
    return Path(directory) / f"iter_{iteration:07d}"


def latest_iteration_dir(directory: str | Path) -> Path:
    """Return the directory of the last complete iteration, as ``latest_checkpointed_iteration.txt`` names it.

    Raises UserError when ``directory`` is no checkpoint directory or the named iteration is gone.
    """
    tracker = Path(directory) / TRACKER_NAME
    if not tracker.is_file():
        raise UserError(f"{directory} is not a checkpoint directory, {_why(Path(directory))}")
    text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isdecimal() and text != _RELEASE:
        raise UserError(f"{tracker} holds {text!r}; the number of an iteration, or '{_RELEASE}', is needed")
    path = Path(directory) / _RELEASE if text == _RELEASE else iteration_dir(directory, int(text))
    if not path.is_dir():
        raise UserError(f"{tracker} names iteration {text}, but {path} does not exist")
    return path


def _why(directory: Path) -> str:
    """Say what a directory without a tracker lacks, and what was probably meant."""
    if not directory.exists():
        return "it does not exist"
    missing = f"it has no {TRACKER_NAME}"
    if re.fullmatch(rf"iter_\d{{7}}|{_RELEASE}", directory.name):
        return f"{missing}; give the directory above it"
    if (directory / "config.json").is_file():
        return f"{missing}; it is a Hugging Face model: convert it with convert_ckpt.py first"
    below = sorted(str(path.parent) for depth in ("*", "*/*") for path in directory.glob(f"{depth}/{TRACKER_NAME}"))
    return f"{missing}; there is one in {' and in '.join(below)}" if below else missing


def read_checkpoint_info(iteration_dir: str | Path) -> CheckpointInfo:
    """Return what is known about the checkpoint in ``iteration_dir`` (``.../iter_0000001``).

    Raises UserError when its ``mindllm.json`` or ``hf/config.json`` is missing, broken, or they contradict each other.
    """
    path = Path(iteration_dir) / INFO_NAME
    if not path.is_file():
        raise UserError(
            f"{iteration_dir} has no {INFO_NAME}: it was not written by mindllm; to convert it, name a Hugging Face "
            "directory with its config.json and tokenizer by --hf-dir"
        )
    hf_dir = Path(iteration_dir) / "hf"
    values = _read_values(path)
    ignored = tuple(map(str, values.get("ignored_config_fields", ())))
    architecture = load_architecture(hf_dir, ignored)
    try:
        version = int(values["format_version"])
        info = CheckpointInfo(
            architecture=architecture,
            vocab_size=int(values["vocab_size"]),
            padded_vocab_size=int(values["padded_vocab_size"]),
            dtype=str(values["dtype"]),
            hf_dir=hf_dir,
            head=values.get("head", "lm"),
            ignored_config_fields=ignored,
        )
        stated = {"family": values["family"], "vocab_size": info.vocab_size, "tie_embeddings": values["tie_embeddings"]}
    except KeyError as error:
        raise UserError(f"{path} is broken: it has no key {error}") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is broken: {error}") from None
    if version != FORMAT_VERSION:
        raise UserError(f"{path} has format_version {version}; this version reads {FORMAT_VERSION}")
    if info.head not in HEADS or (info.head == "lm") == architecture.scalar_head:
        kind = "scores with one number" if architecture.scalar_head else "is a language model"
        raise UserError(f"{path} says head = {info.head!r}, but the model of hf/config.json {kind}")
    for name, value in stated.items():
        if value != getattr(architecture, name):
            raise UserError(f"{path} says {name} = {value!r}, but hf/config.json {getattr(architecture, name)!r}")
    return info


def trained_iteration(iteration_dir: str | Path) -> int | None:
    """Iteration of training that wrote ``iteration_dir``; None where a conversion did, or it does not say."""
    try:
        found = json.loads((Path(iteration_dir) / INFO_NAME).read_text(encoding="utf-8"))["provenance"]["iteration"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _read_values(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is broken: {error}") from None


def write_checkpoint_info(
    iteration_dir: str | Path,
    architecture: Architecture,
    *,
    padded_vocab_size: int | None = None,
    dtype: str | None = None,
    head: Head | None = None,
    ignored_config_fields: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write ``mindllm.json`` into ``iteration_dir``.

    ``padded_vocab_size`` defaults to the true size, ``dtype`` to the architecture's, ``head`` to ``lm`` or, for an
    architecture with a scalar head, ``reward``; ``ignored_config_fields`` are those of its ``config.json`` that were
    not read; ``provenance`` is JSON data that says where the checkpoint came from.
    """
    values = {
        "format_version": FORMAT_VERSION,
        "family": architecture.family,
        "vocab_size": architecture.vocab_size,
        "padded_vocab_size": padded_vocab_size or architecture.vocab_size,
        "dtype": dtype or architecture.dtype,
        "tie_embeddings": architecture.tie_embeddings,
        "head": head or default_head(architecture),
        "ignored_config_fields": list(ignored_config_fields),
        "provenance": dict(provenance or {}),
    }
    path = Path(iteration_dir) / INFO_NAME
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def copy_hf_files(source: str | Path, target: str | Path, dtype: str | None = None) -> list[str]:
    """Copy config, generation config, tokenizer and chat template files; return the names copied.

    ``target`` is created. With ``dtype``, ``config.json`` states it if it stated another one or a quantisation, and
    counts no layers that are never converted; it never names the file of the weights. Otherwise it is a copy byte for
    byte. Raises UserError when ``source`` has no ``config.json``.
    """
    config = read_config(source)
    target = Path(target)
    target.mkdir(parents=True, exist_ok=True)
    names = sorted({path.name for pattern in _HF_PATTERNS for path in Path(source).glob(pattern)})
    for name in names:
        path = Path(source) / name
        if path.is_dir():
            shutil.copytree(path, target / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, target / name)
    later_layers = family_of(config["model_type"]).later_layers
    config.pop("transformers_weights", None)
    if dtype is not None and (dtype != dtype_name(config, str(source)) or fp8_block(config)):
        _state_dtype(config, dtype)
    if dtype is not None and later_layers is not None and config.get(later_layers):
        config[later_layers] = 0
    if config != read_config(source):
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (target / "config.json").write_text(text, encoding="utf-8")
    return names


def _state_dtype(config: dict[str, Any], dtype: str) -> None:
    """Set the dtype that ``config`` states, under the name (old or new) that it uses, and no quantisation."""
    config.pop("quantization_config", None)
    for name in [name for name in ("dtype", "torch_dtype") if name in config] or ["dtype"]:
        config[name] = dtype
