"""Models shared by all distributed tests."""

import pytest

from tests.distributed.models import CONFIGS, TinyModel, make_model
from tests.distributed.scalars import NAMES, make_scalar_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    """One tiny model per family, by family name."""
    return {name: make_model(name, tmp_path_factory.mktemp(name)) for name in CONFIGS}


@pytest.fixture(scope="session")
def scalar_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    """Tiny models with a scalar head, by family name."""
    return {name: make_scalar_model(name, tmp_path_factory.mktemp(f"scalar-{name}")) for name in NAMES}
