"""A small valid configuration of each stage, and a directory to compose from."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

GRPO: dict[str, Any] = {
    "training": {"stage": "grpo", "train_iters": 4, "global_batch_size": 8, "seq_length": 64},
    "actor_rollout_ref": {
        "actor_rollout": {
            "load": "ckpt/actor",
            "data_path": "data/rl",
            "lr": 1e-4,
            "n_samples_per_prompt": 4,
            "max_prompt_length": 32,
        }
    },
    "reward": {"functions": [{"name": "accuracy"}]},
}
SFT: dict[str, Any] = {
    "training": {
        "stage": "sft",
        "train_iters": 4,
        "global_batch_size": 8,
        "seq_length": 64,
        "load": "ckpt/base",
        "data_path": "data/sft",
        "lr": 1e-3,
    }
}
ORM: dict[str, Any] = {
    "training": SFT["training"] | {"stage": "orm", "load": "ckpt/rm_init", "data_path": "data/pairs"}
}
PPO: dict[str, Any] = {
    "training": {"stage": "ppo", "train_iters": 4, "global_batch_size": 8, "seq_length": 64},
    "actor_rollout_ref": {
        "actor_rollout": {"load": "ckpt/actor", "data_path": "data/rl", "lr": 1e-4, "max_prompt_length": 32},
    },
    "critic": {"load": "ckpt/rm", "lr": 3e-4},
    "reward": {"load": "ckpt/rm"},
}


def here(path: str) -> str:
    """What a path relative to the working directory resolves to."""
    return f"{Path.cwd()}/{path}"


@pytest.fixture
def orm() -> dict[str, Any]:
    return copy.deepcopy(ORM)


@pytest.fixture
def ppo() -> dict[str, Any]:
    return copy.deepcopy(PPO)


@pytest.fixture
def grpo() -> dict[str, Any]:
    return copy.deepcopy(GRPO)


@pytest.fixture
def sft() -> dict[str, Any]:
    return copy.deepcopy(SFT)


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    """A directory with `small_grpo`, `small_ppo`, `small_sft` and the model file `tiny`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tiny.yaml").write_text("tiny:\n  num_layers: 4\n  num_attention_heads: 4\n  bf16: true\n")
    (tmp_path / "small_grpo.yaml").write_text(yaml.safe_dump({"defaults": [{"model": ["tiny"]}], **GRPO}))
    (tmp_path / "small_ppo.yaml").write_text(yaml.safe_dump(PPO))
    (tmp_path / "small_sft.yaml").write_text(yaml.safe_dump(SFT))
    return tmp_path


@pytest.fixture
def write(config_dir: Path) -> Callable[[str], str]:
    """Write text as a new configuration and return its name."""

    def _write(text: str) -> str:
        (config_dir / "written.yaml").write_text(text)
        return "written"

    return _write
