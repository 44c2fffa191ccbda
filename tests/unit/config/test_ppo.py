"""Stages with a critic and a reward model: who is built from what, in which processes."""

import pytest
import yaml

from mindllm.algorithms import AGGREGATIONS
from mindllm.config import RewardModelConfig, build_config, resolved_yaml
from mindllm.config.actor import ActorConfig
from mindllm.errors import UserError
from tests.unit.config.conftest import here
from tests.unit.config.test_bad_configs import ACTOR, put, refusal


def built(raw, changes=None):
    for path, value in (changes or {}).items():
        put(raw, path, value)
    return build_config(raw, "mine")


def test_a_small_file_gives_four_models_and_the_defaults_of_the_stage(ppo):
    config = built(ppo)
    assert list(config.roles()) == ["actor_rollout", "ref", "critic", "reward"]
    assert config.ignored_keys == []
    assert config.actor.do_sample is False and config.actor.n_samples_per_prompt == 1
    algorithm = config.algorithm
    assert (algorithm.adv_estimator, algorithm.gamma, algorithm.lam) == ("gae", 1.0, 0.95)
    assert algorithm.whitens("step") and not algorithm.whitens("minibatch")
    assert algorithm.use_kl_in_reward and algorithm.kl_ctrl.kl_coef == 0.05 and algorithm.kl_ctrl.type == "fixed"
    assert (config.critic.cliprange_value, config.critic.critic_update_epochs) == (3.0, 1)
    assert config.critic.save == here("runs/mine/checkpoints/critic")
    assert config.actor.save == here("runs/mine/checkpoints/actor")
    assert config.reward_model.weight == 1.0 and config.reward.functions == []


def test_the_other_stages_keep_their_defaults(grpo, orm):
    config = build_config(grpo)
    assert config.actor.do_sample and not config.algorithm.advantage_whiten and not config.algorithm.use_kl_in_reward
    assert config.critic is None and config.reward_model is None
    config = build_config(orm, "mine")
    assert list(config.roles()) == ["actor_rollout"] and config.actor.load == here("ckpt/rm_init")
    assert config.actor.save == here("runs/mine/checkpoints/actor")


@pytest.mark.parametrize(
    ("algorithm", "in_reward", "coefficient"),
    [
        ({"kl_ctrl": {"kl_coef": 0}}, False, 0.0),
        ({"kl_ctrl": {"kl_coef": "0.2"}}, True, 0.2),
        ({"use_kl_in_reward": False}, False, 0.0),
        ({"use_kl_loss": False}, True, 0.05),
        ({"use_kl_in_reward": "true"}, True, 0.05),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, False, 0.0),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1, "use_kl_in_reward": True}, True, 0.05),
    ],
)
def test_kl_is_in_the_reward_unless_something_else_is_said(ppo, algorithm, in_reward, coefficient):
    ppo["algorithm"] = algorithm
    config = build_config(ppo)
    assert (config.algorithm.use_kl_in_reward, config.algorithm.kl_ctrl.kl_coef) == (in_reward, coefficient)
    assert (config.ref is not None) == config.algorithm.needs_reference


def test_an_adaptive_coefficient_has_a_target_and_a_horizon(ppo):
    control = built(
        ppo, {"algorithm.kl_ctrl": {"type": "adaptive", "target_kl": 6, "horizon": "1e4"}}
    ).algorithm.kl_ctrl
    assert (control.kl_coef, control.target_kl, control.horizon) == (0.05, 6.0, 10000)


def test_what_only_an_adaptive_coefficient_reads_is_named_under_a_fixed_one(ppo):
    config = built(ppo, {"algorithm.kl_ctrl": {"target_kl": 6, "horizon": 100}})
    assert {key for key, _ in config.ignored_keys} == {"algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"}


def test_roles_read_training_below_their_own_section(ppo):
    config = built(
        ppo,
        {
            "training.lr": 1e-6,
            "training.micro_batch_size": 4,
            "training.tokenizer_name_or_path": "tokenizer",
            "training.cliprange_value": 0.5,
            "reward.micro_batch_size": 32,
            f"{ACTOR}.tensor_model_parallel_size": 2,
        },
    )
    assert (config.actor.lr, config.critic.lr) == (1e-4, 3e-4)
    assert (config.critic.micro_batch_size, config.reward_model.micro_batch_size) == (4, 32)
    assert config.critic.cliprange_value == 0.5
    assert (config.ref.tensor_model_parallel_size, config.critic.tensor_model_parallel_size) == (2, 1)
    assert config.actor.tokenizer_name_or_path == here("tokenizer")


def test_the_reward_models_tokenizer_is_its_own(ppo):
    ppo["training"]["tokenizer_name_or_path"] = "tokenizer"
    assert build_config(ppo).reward_model.tokenizer_name_or_path is None
    ppo["reward"]["tokenizer_name_or_path"] = "other"
    assert build_config(ppo).reward_model.tokenizer_name_or_path == here("other")


def test_roles_of_the_actors_layout_share_its_processes_and_others_get_their_own(ppo):
    config = built(ppo, {f"{ACTOR}.tensor_model_parallel_size": 2, "reward.tensor_model_parallel_size": 2})
    assert {role: config.resource_pool.owner(role) for role in config.roles()} == {
        "actor_rollout": "actor_rollout",
        "ref": "actor_rollout",
        "critic": "critic",
        "reward": "actor_rollout",
    }
    assert {role: config.world_size(role) for role in config.roles()} == {
        "actor_rollout": 2,
        "ref": 2,
        "critic": 1,
        "reward": 2,
    }


def test_roles_may_share_with_any_other_role(ppo):
    pool = {"actor_rollout": [1], "critic": [2], "ref": "reward", "reward": [2, 2]}
    config = built(
        ppo,
        {"resource_pool": pool, "reward.tensor_model_parallel_size": 2, f"{ACTOR}.seq_length": 32}
        | {"actor_rollout_ref.ref.tensor_model_parallel_size": 2, f"{ACTOR}.max_prompt_length": 16},
    )
    assert config.resource_pool.owner("ref") == "reward" and config.per_node("ref") == [2, 2]
    assert config.data_parallel_size("ref") == 2 and config.data_parallel_size("critic") == 2


@pytest.mark.parametrize(
    ("pool", "train", "infer"),
    [([8, 6], [8], [6]), ([14], [8], [6]), (14, [8], [6]), ([6, 8], [6, 2], [6]), ([7, 7], [7, 1], [6])],
)
def test_generation_ranks_are_the_last_processes_of_the_pool(ppo, pool, train, infer):
    changes = {f"{ACTOR}.num_gpus_for_infer": 6, f"{ACTOR}.inference_tensor_model_parallel_size": 2}
    config = built(ppo, changes | {"resource_pool.actor_rollout": pool})
    assert config.generates_apart
    assert (config.per_node("actor_rollout"), config.per_node("rollout")) == (train, infer)
    assert (config.data_parallel_size(), config.data_parallel_size("rollout")) == (8, 3)
    assert config.per_node("critic") == train


def test_training_and_generation_ranks_are_the_pool_when_nothing_else_says_so(ppo):
    config = built(ppo, {f"{ACTOR}.num_gpus_for_train": 2, f"{ACTOR}.num_gpus_for_infer": 1})
    assert config.resource_pool.actor_rollout == 3
    assert (config.world_size("actor_rollout"), config.world_size("rollout")) == (2, 1)
    assert config.actor.inference_tensor_model_parallel_size == 1


def test_the_inference_layout_without_generation_ranks_is_named(ppo):
    config = built(ppo, {f"{ACTOR}.inference_tensor_model_parallel_size": 4})
    assert f"{ACTOR}.inference_tensor_model_parallel_size" in dict(config.ignored_keys)
    assert config.actor.inference_tensor_model_parallel_size == 1


def test_rule_rewards_a_reward_model_or_both_make_the_reward(ppo, grpo):
    both = built(ppo, {"reward.functions": ["format"], "reward.weight": 0.5})
    assert (both.reward_model.weight, both.reward.functions[0].name) == (0.5, "format")
    ppo["reward"] = {"functions": ["format"]}
    assert build_config(ppo).reward_model is None
    grpo["reward"] = {"load": "ckpt/rm"}
    assert isinstance(build_config(grpo).reward_model, RewardModelConfig)


def test_a_verifier_switches_between_rules_and_model(ppo):
    ppo["algorithm"] = {"verifier_function": "acc"}
    rules = built(ppo, {"reward.verifier": True})
    assert rules.reward_model is None and rules.reward.functions[0].name == "accuracy"
    assert dict(rules.ignored_keys)["reward.load"].startswith("verifier is true")
    model = built(ppo, {"reward.verifier": False})
    assert model.reward_model is not None and model.reward.functions == []
    assert "algorithm.verifier_function" in dict(model.ignored_keys)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"resource_pool.critic": []}, "resource_pool.critic is [] but stage ray_ppo trains a critic"),
        ({"resource_pool.critic": "refs"}, "did you mean 'ref'"),
        ({"resource_pool.critic": "reward", "resource_pool.reward": "critic"}, "name each other in a circle"),
        ({"resource_pool.critic": "critic"}, "name each other in a circle"),
        (
            {"resource_pool.critic": "reward", "resource_pool.reward": [], "reward.functions": "format"},
            "this run has no such model to share with",
        ),
        ({"resource_pool.critic": 3, "critic.tensor_model_parallel_size": 2}, "resource_pool.critic (3 processes)"),
        (
            {"resource_pool.critic": "actor_rollout", "critic.tensor_model_parallel_size": 2},
            "resource_pool.critic is actor_rollout, but roles that share processes need the same TP, PP and VPP",
        ),
        ({"critic.save": "runs/mine/checkpoints/actor"}, "each role needs a directory of its own"),
        ({"critic.save": "ckpt/rm"}, "critic.save is the directory that load reads"),
        ({"critic.critic_mini_batch_size": 16}, "critic.critic_mini_batch_size (16) must not exceed"),
        ({"critic.critic_mini_batch_size": 3}, "critic.critic_mini_batch_size (3) must divide"),
        ({"critic.critic_warmup_iters": 4}, "critic.critic_warmup_iters (4) must be less than training.train_iters"),
        ({"critic.lr_warmup_iters": 4}, "critic.lr_warmup_iters (4) must be less than the run's 4 optimizer steps"),
        ({"critic.min_lr": 1}, "critic.min_lr (1.0) must not be greater than lr"),
        ({"critic.num_layers": 3, "critic.pipeline_model_parallel_size": 2}, "must divide the critic's 3 layers"),
        ({"critic.seq_length": 32}, "critic.seq_length (32) must be at least the actor's (64)"),
        ({"resource_pool.critic": 16}, "less than the 16 data-parallel ranks of the critic"),
        ({"critic.cliprange_value": 0}, "critic.cliprange_value is 0: it must be greater than 0"),
        ({"critic.cliprange": 0.2}, "critic.cliprange: unknown key"),
        ({"critic.ppo_epochs": 2}, f"critic.ppo_epochs: this section has no such key; write {ACTOR}.ppo_epochs"),
        ({"critic.load": None}, "critic.load is missing"),
        ({"reward.load": None, "reward.micro_batch_size": 2}, "reward.load is missing"),
        ({"reward": {}}, "or a reward model with reward.load"),
        ({"reward.weight": 0}, "every weight is 0"),
        ({"reward": {"verifier": False}}, "that asks for a reward model; write reward.load"),
        ({f"{ACTOR}.n_samples_per_prompt": 2}, "is 2 but actor_rollout_ref.actor_rollout.do_sample is false"),
        ({"algorithm.adv_estimator": "group_norm"}, "belongs to stage ray_grpo; write gae"),
        ({"algorithm.missing_eos_penalty": -1}, "at least 0"),
        ({"algorithm.whiten_scope": "batch"}, "allowed is 'step' or 'minibatch'"),
        ({"algorithm.kl_ctrl": {"type": "adaptive", "kl_coef": 0}}, "adaptive has no effect without"),
        ({"algorithm.kl_ctrl": {"type": "adaptive", "horizon": 0}}, "at least 1"),
        (
            {f"{ACTOR}.num_gpus_for_infer": 3, f"{ACTOR}.inference_tensor_model_parallel_size": 2},
            "must be a multiple of",
        ),
        (
            {f"{ACTOR}.num_gpus_for_infer": 2, f"{ACTOR}.num_gpus_for_train": 2, "resource_pool.actor_rollout": [6]},
            "num_gpus_for_train (2) + num_gpus_for_infer (2) is 4 but resource_pool.actor_rollout is 6",
        ),
        (
            {f"{ACTOR}.num_gpus_for_infer": 2, "resource_pool.actor_rollout": 2},
            "takes all of its processes, so none is left",
        ),
        (
            {
                f"{ACTOR}.num_gpus_for_infer": 3,
                f"{ACTOR}.inference_tensor_model_parallel_size": 3,
                f"{ACTOR}.num_attention_heads": 4,
            },
            "inference_tensor_model_parallel_size (3) must divide the actor's 4 attention heads",
        ),
        ({"training.executor": "inline", "resource_pool.critic": 1}, "training.executor inline runs one process"),
        ({f"{ACTOR}.loss_agg_mode": "mean"}, "allowed is 'token-mean'"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(ppo, changes, fragment):
    message = refusal(ppo, {"training.run_dir": "runs/mine"} | changes)
    assert fragment in message and "\n" not in message


@pytest.mark.parametrize("key", ["load", "lr"])
def test_a_required_key_of_the_critic_is_named_when_missing(ppo, key):
    del ppo["critic"][key]
    with pytest.raises(UserError, match=rf"critic\.{key} is missing: "):
        build_config(ppo)


def test_a_pool_of_a_role_that_does_not_exist_is_named(ppo):
    config = built(ppo, {"reward": {"functions": ["format"]}, "resource_pool.reward": [1]})
    assert "resource_pool.reward" in dict(config.ignored_keys)


def test_keys_of_rule_rewards_without_rule_rewards_are_named(ppo):
    assert "reward.on_error" in dict(built(ppo, {"reward.on_error": "zero"}).ignored_keys)


def test_one_process_may_hold_all_four_models(ppo):
    assert built(ppo, {"training.executor": "inline"}).training.executor == "inline"


def test_the_aggregations_are_those_that_are_implemented():
    assert ActorConfig.model_json_schema()["properties"]["loss_agg_mode"]["enum"] == list(AGGREGATIONS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.target_kl": 6},
        {"algorithm.use_kl_in_reward": False, "algorithm.advantage_whiten": False},
        {"algorithm.use_kl_loss": True, "algorithm.kl_loss_coef": 0.1},
        {"reward.functions": ["format"], "critic.tensor_model_parallel_size": 2, "resource_pool.ref": "reward"},
        {"reward": {"functions": ["format"]}, "training.do_sample": True, f"{ACTOR}.n_samples_per_prompt": 2},
        {f"{ACTOR}.num_gpus_for_infer": 2, f"{ACTOR}.inference_tensor_model_parallel_size": 2},
        {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean", f"{ACTOR}.target_kl": 0.02},
    ],
)
def test_a_resolved_configuration_gives_itself_back(ppo, changes):
    config = built(ppo, changes)
    again = build_config(yaml.safe_load(resolved_yaml(config)))
    assert again.model_copy(update={"ignored_keys": []}) == config.model_copy(update={"ignored_keys": []})
    assert again.ignored_keys == []


def test_a_tokenizer_of_a_model_that_reads_the_actors_tokens_is_named(ppo):
    config = built(ppo, {"critic.tokenizer_name_or_path": "x", "ref.tokenizer_type": "PretrainedFromHF"})
    assert {key for key, _ in config.ignored_keys} == {
        "critic.tokenizer_name_or_path",
        "actor_rollout_ref.ref.tokenizer_type",
    }
