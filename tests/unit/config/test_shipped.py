"""The shipped configurations compose, and a resolved configuration gives itself back."""

import re

import pytest
import yaml

from mindllm.config import build_config, compose_config, resolved_yaml
from mindllm.config.catalog import config_names
from mindllm.resources import TRAINER_CONFIGS

SHIPPED = config_names(TRAINER_CONFIGS)
KL = ["algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0.1", "algorithm.kl_loss_type=k2"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_composes_and_no_key_of_it_is_without_effect(name):
    config = compose_config(name, [])
    assert config.ignored_keys == []
    assert config.actor.model_keys


def test_the_configurations_that_the_documents_name_are_shipped():
    assert {"sft_trainer_quickstart", "grpo_trainer_quickstart", "grpo_trainer_llama32_1b"} <= set(SHIPPED)


@pytest.mark.parametrize("path", sorted(TRAINER_CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_key_of_a_shipped_file_carries_a_comment(path):
    for line in path.read_text().splitlines():
        is_leaf = re.match(r"^\s*(- )?[\w-]+: ?\S", line) and not line.lstrip().startswith("#")
        assert not is_leaf or "  #" in line, line


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_saves_before_it_ends(name):
    training = compose_config(name, []).training
    assert training.save_interval <= training.train_iters


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        *[(name, []) for name in SHIPPED],
        ("grpo_trainer_quickstart", KL),
        ("grpo_trainer_quickstart", ["algorithm.kl_ctrl.kl_coef=0.05", "algorithm.kl_penalty=abs"]),
        ("grpo_trainer_quickstart", [*KL, "ref.tensor_model_parallel_size=1", "ref.bf16=true"]),
        ("grpo_trainer_quickstart", ["training.clip_ratio_low=0.1", "training.clip_ratio_c=3", "training.lr=1e-7"]),
        (
            "grpo_trainer_quickstart",
            ["reward.functions=[{name:f,path:a/b.py,args:{k:1,none:null}}]", "training.top_k=0"],
        ),
    ],
)
def test_a_resolved_configuration_reloads_to_the_same_configuration(tmp_path, name, overrides):
    config = compose_config(name, overrides)
    text = resolved_yaml(config)
    (tmp_path / "config.yaml").write_text(text)
    again = compose_config(str(tmp_path / "config.yaml"), [])
    assert again.model_copy(update={"ignored_keys": []}) == config.model_copy(update={"ignored_keys": []})
    assert resolved_yaml(again) == text


def test_a_resolved_configuration_needs_no_hydra(grpo):
    config = build_config(grpo)
    assert build_config(yaml.safe_load(resolved_yaml(config))) == config
