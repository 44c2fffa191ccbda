"""docs/configuration.md says what the schema says."""

import re
from pathlib import Path

import pytest
import yaml

from mindllm.config import build_config, compose_config
from mindllm.config.actor import ActorConfig
from mindllm.config.architecture import ArchitectureKeys
from mindllm.config.document import keys_tables
from mindllm.config.pool import ResourcePool
from mindllm.config.roles import CriticConfig, RewardModelConfig
from mindllm.config.sections import AlgorithmConfig, KLControl, RewardConfig, RewardFunction
from mindllm.config.training import TrainingConfig
from mindllm.resources import TRAINER_CONFIGS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()
SECTIONS = (
    TrainingConfig,
    ActorConfig,
    CriticConfig,
    RewardModelConfig,
    AlgorithmConfig,
    KLControl,
    RewardConfig,
    RewardFunction,
    ResourcePool,
    ArchitectureKeys,
)


def test_the_tables_are_the_schemas():
    assert PAGE.endswith(keys_tables()), "run `python -m mindllm.config.document` and paste it below 'Every key'"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_is_described(section):
    for key, field in section.model_fields.items():
        assert field.description, key
        assert re.search(rf"\| `([\w.\[\]]+\.)?{key}` \|", PAGE) or key in ("model_keys", "kl_ctrl"), key


def test_the_pages_example_is_a_valid_configuration():
    raw = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.S).group(1))
    del raw["defaults"]
    raw["model"] = yaml.safe_load((TRAINER_CONFIGS / "model" / "quickstart.yaml").read_text())
    assert build_config(raw).actor.lr == 1.5e-4


def test_the_pages_commands_compose():
    commands = re.findall(r"--config-name (\w+) (\S+=\S+)", PAGE)
    assert commands
    for name, override in commands:
        compose_config(name, [override])
