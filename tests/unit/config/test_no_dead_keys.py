"""Every key that the schema honours is read by another room."""

import re
from pathlib import Path

import pytest

from mindllm.config.actor import ActorConfig
from mindllm.config.roles import CriticConfig, RewardModelConfig
from mindllm.config.sections import AlgorithmConfig, KLControl, RewardConfig, RewardFunction
from mindllm.config.training import TrainingConfig

PACKAGE = Path(__file__).resolve().parents[3] / "mindllm"
READ_BY_CONFIG_ALONE = {
    "tokenizer_type": "has one value",
    "num_gpus_for_train": "is resource_pool.actor_rollout by another name",
    "num_gpus_for_infer": "is the rest of resource_pool.actor_rollout, see RunConfig.per_node",
    "advantage_whiten": "is read through AlgorithmConfig.whitens",
    "whiten_scope": "is read through AlgorithmConfig.whitens",
    "clip_ratio": "is the default of clip_ratio_low and clip_ratio_high",
}


@pytest.mark.parametrize(
    "section",
    [
        TrainingConfig,
        ActorConfig,
        CriticConfig,
        RewardModelConfig,
        AlgorithmConfig,
        KLControl,
        RewardConfig,
        RewardFunction,
    ],
    ids=lambda section: section.__name__,
)
def test_every_honoured_key_is_read_outside_the_configuration(section):
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "config")
    unread = [key for key in section.model_fields if not re.search(rf"\.{key}\b", code)]
    assert [key for key in unread if key not in READ_BY_CONFIG_ALONE] == []
