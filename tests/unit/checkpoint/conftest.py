"""One tiny model that most tests only read."""

from pathlib import Path

import pytest

from mindllm.checkpoint import convert_hf_to_mcore
from tests.unit.checkpoint.tiny_models import make_hf_model


@pytest.fixture(scope="session")
def hf_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied fp32 qwen2 model in one file. Read only."""
    return make_hf_model(tmp_path_factory.mktemp("hf") / "qwen2", "qwen2")


@pytest.fixture(scope="session")
def mcore_qwen2(hf_qwen2: Path) -> Path:
    """The same model converted. Read only."""
    convert_hf_to_mcore(hf_qwen2, hf_qwen2.parent / "mcore")
    return hf_qwen2.parent / "mcore"
