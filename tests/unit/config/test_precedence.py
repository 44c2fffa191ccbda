"""Role section > training > model file, and the same for the reference, which falls back on the actor."""

import pytest

from mindllm.config import build_config, compose_config
from tests.unit.config.conftest import here

ACTOR = "actor_rollout_ref.actor_rollout"


def with_kl(raw):
    raw["algorithm"] = {"use_kl_loss": True, "kl_loss_coef": 0.1}
    return raw


def test_a_role_section_wins_over_training_and_training_over_the_model_file(config_dir):
    name, directory = "small_grpo", str(config_dir)
    picks = [f"{ACTOR}.model=tiny"]
    assert compose_config(name, picks, directory).actor.bf16 is True
    picks.append("training.bf16=false")
    assert compose_config(name, picks, directory).actor.bf16 is False
    picks.append(f"{ACTOR}.bf16=true")
    assert compose_config(name, picks, directory).actor.bf16 is True


def test_roles_at_the_top_level_are_read_too(grpo):
    grpo["actor_rollout"] = grpo.pop("actor_rollout_ref")["actor_rollout"]
    grpo["ref"] = {"load": "ckpt/ref"}
    config = build_config(with_kl(grpo))
    assert (config.actor.load, config.ref.load) == (here("ckpt/actor"), here("ckpt/ref"))


def test_sft_keeps_its_role_keys_in_training(sft):
    config = build_config(sft)
    assert (config.actor.load, config.actor.data_path, config.actor.lr) == (here("ckpt/base"), here("data/sft"), 1e-3)
    assert config.ref is None


def test_sft_may_use_the_actor_section_too(sft):
    sft["actor_rollout_ref"] = {"actor_rollout": {"lr": 5e-4}}
    assert build_config(sft).actor.lr == 5e-4


def test_there_is_no_reference_without_a_kl_term(grpo):
    grpo["actor_rollout_ref"]["ref"] = {"load": "ckpt/ref"}
    config = build_config(grpo)
    assert config.ref is None
    assert ("actor_rollout_ref.ref.load", "no KL term is used, so no reference model is loaded") in config.ignored_keys


@pytest.mark.parametrize(
    "algorithm",
    [
        {"use_kl_loss": True, "kl_loss_coef": 0.1},
        {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.1}},
        {"kl_penalty": "kl", "kl_ctrl": {"type": "fixed", "kl_coef": "5e-2"}},
    ],
)
def test_a_reference_without_a_section_is_the_actor_in_the_actors_processes(grpo, algorithm):
    grpo["algorithm"] = algorithm
    grpo["training"]["tensor_model_parallel_size"] = 2
    grpo["actor_rollout_ref"]["actor_rollout"]["sequence_parallel"] = True
    config = build_config(grpo)
    assert config.ref.load == here("ckpt/actor")
    assert config.ref.tensor_model_parallel_size == 2 and config.ref.sequence_parallel
    assert config.resource_pool.ref == "actor_rollout" and config.resource_pool.ref_shares_actor
    assert config.resource_pool.world_size("ref") == 2


def test_a_coefficient_alone_means_kl_in_the_reward(grpo):
    grpo["algorithm"] = {"kl_ctrl": {"kl_coef": 0.05}}
    assert build_config(grpo).algorithm.use_kl_in_reward is True


def test_a_reference_of_another_layout_gets_its_own_processes(grpo):
    grpo["actor_rollout_ref"]["ref"] = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    config = build_config(with_kl(grpo))
    assert config.resource_pool.ref == 4 and config.data_parallel_size("ref") == 1
    assert config.resource_pool.world_size("actor_rollout") == 1


def test_a_reference_without_pipeline_has_no_virtual_stages(grpo):
    grpo["actor_rollout_ref"]["actor_rollout"] |= {
        "pipeline_model_parallel_size": 2,
        "num_layers_per_virtual_pipeline_stage": 1,
    }
    grpo["actor_rollout_ref"]["ref"] = {"pipeline_model_parallel_size": 1}
    config = build_config(with_kl(grpo))
    assert config.ref.num_layers_per_virtual_pipeline_stage is None


def test_training_counts_for_the_reference_where_the_actor_says_otherwise(grpo):
    grpo["training"]["micro_batch_size"] = 4
    grpo["actor_rollout_ref"]["actor_rollout"]["micro_batch_size"] = 2
    config = build_config(with_kl(grpo))
    assert (config.actor.micro_batch_size, config.ref.micro_batch_size) == (2, 4)


def test_data_parallelism_is_what_tp_and_pp_leave(grpo):
    grpo["actor_rollout_ref"]["actor_rollout"]["tensor_model_parallel_size"] = 2
    grpo["resource_pool"] = {"actor_rollout": [4, 4]}
    config = build_config(grpo)
    assert config.data_parallel_size() == 4
    assert config.resource_pool.per_node("actor_rollout") == [4, 4]


def test_num_gpus_for_train_is_the_pool_when_nothing_else_says_so(grpo):
    grpo["actor_rollout_ref"]["actor_rollout"] |= {"num_gpus_for_train": 4, "num_gpus_for_infer": 0}
    assert build_config(grpo).resource_pool.actor_rollout == 4


def test_sequence_parallelism_without_tensor_parallelism_is_off_and_named(grpo):
    grpo["training"]["sequence_parallel"] = True
    config = build_config(grpo)
    assert config.actor.sequence_parallel is False
    assert "training.sequence_parallel" in dict(config.ignored_keys)


def test_directories_of_runs_and_roles_differ_and_every_run_saves(grpo):
    config = build_config(grpo, "mine")
    assert config.training.run_dir == here("runs/mine")
    assert config.actor.save == here("runs/mine/checkpoints/actor") != config.actor.load
    assert config.training.save_interval >= 1
