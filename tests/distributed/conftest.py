"""Models shared by all distributed tests."""

import pytest

from tests.distributed.models import CONFIGS, TinyModel, make_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    """One tiny model per family, by family name."""
    return {name: make_model(name, tmp_path_factory.mktemp(name)) for name in CONFIGS}
