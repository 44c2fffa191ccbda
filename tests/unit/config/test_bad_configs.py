"""Every mistake in a configuration is found on the driver, in a sentence that names the key."""

from typing import Any

import pytest

from mindllm.config import build_config
from mindllm.errors import UserError

ACTOR = "actor_rollout_ref.actor_rollout"


def put(raw: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
    raw[key] = value


def refusal(raw: dict[str, Any], changes: dict[str, Any]) -> str:
    for path, value in changes.items():
        put(raw, path, value)
    with pytest.raises(UserError) as refused:
        build_config(raw)
    return str(refused.value)


UNKNOWN_KEYS = [
    ("training.train_iterss", "did you mean 'train_iters'"),
    ("training.gloabl_batch_size", "did you mean 'global_batch_size'"),
    (f"{ACTOR}.n_sample_per_prompt", "did you mean 'n_samples_per_prompt'"),
    (f"{ACTOR}.num_layer", "did you mean 'num_layers'"),
    (f"{ACTOR}.kl_coef", "algorithm.kl_loss_coef (in the loss) or algorithm.kl_ctrl.kl_coef"),
    (f"{ACTOR}.beta", "algorithm.kl_loss_coef with algorithm.use_kl_loss: true"),
    (f"{ACTOR}.num_generations", "write n_samples_per_prompt"),
    (f"{ACTOR}.epsilon", "write clip_ratio"),
    (f"{ACTOR}.epsilon_high", "write clip_ratio_high"),
    (f"{ACTOR}.max_completion_length", "write max_new_tokens"),
    (f"{ACTOR}.learning_rate", "write lr"),
    (f"{ACTOR}.train_iters", "write training.train_iters"),
    (f"{ACTOR}.use_kl_loss", "write algorithm.use_kl_loss"),
    ("actor_rollout_ref.ref.lr", f"write {ACTOR}.lr"),
    ("actor_rollout_ref.rollout.n", "n -> n_samples_per_prompt"),
    ("trainer.save_freq", "save_freq -> training.save_interval"),
    ("trainig.seed", "did you mean 'training'"),
    ("algorithm.adv_estimater", "did you mean 'adv_estimator'"),
    ("algorithm.kl_ctrl.kl_coeff", "did you mean 'kl_coef'"),
    ("algorithm.beta", "algorithm.use_kl_loss: true"),
    ("reward.function", "did you mean 'functions'"),
    ("reward.reward_funcs", "write reward.functions"),
    ("resource_pool.actor", "did you mean 'actor_rollout'"),
    ("lr", f"write {ACTOR}.lr"),
    ("kl_coef", "algorithm.kl_ctrl.kl_coef"),
]


@pytest.mark.parametrize(("path", "fragment"), UNKNOWN_KEYS)
def test_an_unknown_key_is_refused_with_what_was_meant(grpo, path, fragment):
    message = refusal(grpo, {path: 1})
    assert fragment in message and path.split(".")[0] in message and "\n" not in message


def test_an_unknown_key_of_a_reward_function_is_refused(grpo):
    message = refusal(grpo, {"reward.functions": [{"name": "accuracy", "wieght": 2}]})
    assert "reward.functions[0].wieght" in message or "reward.functions.0.wieght" in message
    assert "did you mean 'weight'" in message


@pytest.mark.parametrize(
    ("path", "value", "fragment"),
    [
        ("training.stage", "grppo", "allowed is 'sft', 'orm', 'ray_grpo' or 'ray_ppo'; did you mean"),
        ("training.executor", "local", "allowed is 'ray' or 'inline'"),
        ("training.train_iters", 0, "at least 1"),
        ("training.trackers", "jsonl,wand", "allowed is"),
        (f"{ACTOR}.lr", 0, "greater than 0"),
        (f"{ACTOR}.lr", "fast", "a number is needed here"),
        (f"{ACTOR}.bf16", "maybe", "true or false is needed here"),
        (f"{ACTOR}.clip_ratio", 1.5, "less than 1"),
        (f"{ACTOR}.clip_ratio_c", 0.5, "greater than 1"),
        (f"{ACTOR}.temperature", 0, "greater than 0"),
        (f"{ACTOR}.top_p", 1.2, "at most 1"),
        (f"{ACTOR}.top_p", 0, "greater than 0"),
        (f"{ACTOR}.top_k", -2, "at least -1"),
        (f"{ACTOR}.lr_decay_style", "cosin", "did you mean 'cosine'"),
        (f"{ACTOR}.load", "", "is empty"),
        ("training.export_hf", "", "is empty"),
        (f"{ACTOR}.data_path", "1,a,2,b", "a blend is not available"),
        (f"{ACTOR}.tokenizer_type", "Llama2Tokenizer", "PretrainedFromHF"),
        (f"{ACTOR}.attention_dropout", 0.1, "at most 0"),
        (f"{ACTOR}.normalization", "LayerNorm", "RMSNorm"),
        ("algorithm.kl_penalty", "k4", "allowed is 'kl', 'abs', 'mse' or 'low_var_kl'"),
        ("reward.on_error", "ignore", "allowed is"),
        ("reward.timeout_s", 0, "greater than 0"),
        ("resource_pool.actor_rollout", 0, "not a number of processes"),
        ("resource_pool.actor_rollout", [], "not a number of processes"),
        ("resource_pool.actor_rollout", "many", "not a number of processes"),
        ("reward", [1], "a section with keys is needed"),
    ],
)
def test_a_value_out_of_range_is_refused_under_its_own_name(grpo, path, value, fragment):
    message = refusal(grpo, {path: value})
    assert message.startswith(path) and fragment in message and "\n" not in message


@pytest.mark.parametrize("key", ["train_iters", "global_batch_size", "stage"])
def test_a_required_key_of_the_run_is_named_when_missing(grpo, key):
    del grpo["training"][key]
    with pytest.raises(UserError, match=rf"training\.{key} is missing: "):
        build_config(grpo)


@pytest.mark.parametrize("key", ["load", "data_path", "lr"])
def test_a_required_key_of_the_actor_is_named_where_its_stage_writes_it(grpo, sft, key):
    del grpo["actor_rollout_ref"]["actor_rollout"][key]
    with pytest.raises(UserError, match=rf"actor_rollout_ref\.actor_rollout\.{key} is missing: "):
        build_config(grpo)
    del sft["training"][key]
    with pytest.raises(UserError, match=rf"training\.{key} is missing: "):
        build_config(sft)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({f"{ACTOR}.n_samples_per_prompt": 1}, "n_samples_per_prompt is 1: group_norm compares"),
    ({f"{ACTOR}.do_sample": False}, "do_sample is false"),
    ({f"{ACTOR}.max_prompt_length": 64}, "max_prompt_length (64) must be less than seq_length (64)"),
    ({f"{ACTOR}.max_new_tokens": 40}, "max_new_tokens (40) must not exceed seq_length (64)"),
    ({f"{ACTOR}.min_new_tokens": 33}, "min_new_tokens (33) must not exceed max_new_tokens (32)"),
    ({f"{ACTOR}.max_kv_tokens": 63}, "max_kv_tokens (63) must be at least seq_length"),
    ({f"{ACTOR}.ppo_mini_batch_size": 64}, "ppo_mini_batch_size (64) must not exceed"),
    ({f"{ACTOR}.ppo_mini_batch_size": 12}, "ppo_mini_batch_size (12) must divide"),
    ({"resource_pool.actor_rollout": 64}, "is 32, less than the 64 data-parallel ranks"),
    (
        {f"{ACTOR}.tensor_model_parallel_size": 2, "resource_pool.actor_rollout": [3]},
        "(3 processes) must be a multiple of tensor_model_parallel_size x pipeline_model_parallel_size (2 x 1)",
    ),
    (
        {f"{ACTOR}.num_gpus_for_train": 2, "resource_pool.actor_rollout": 4},
        "num_gpus_for_train (2) + num_gpus_for_infer (0) is 2 but resource_pool.actor_rollout is 4",
    ),
    (
        {f"{ACTOR}.num_layers_per_virtual_pipeline_stage": 1},
        "num_layers_per_virtual_pipeline_stage needs pipeline_model_parallel_size > 1",
    ),
    ({f"{ACTOR}.num_layers": 3, f"{ACTOR}.pipeline_model_parallel_size": 2}, "must divide the actor's 3 layers"),
    ({f"{ACTOR}.num_attention_heads": 3, f"{ACTOR}.tensor_model_parallel_size": 2}, "3 attention heads"),
    (
        {
            f"{ACTOR}.num_attention_heads": 12,
            f"{ACTOR}.num_query_groups": 4,
            f"{ACTOR}.tensor_model_parallel_size": 6,
            "resource_pool.actor_rollout": 6,
        },
        "(6) must divide, or be a multiple of, the actor's 4 query groups",
    ),
    (
        {
            f"{ACTOR}.num_layers": 8,
            f"{ACTOR}.pipeline_model_parallel_size": 2,
            f"{ACTOR}.num_layers_per_virtual_pipeline_stage": 3,
        },
        "(3) must divide the 4 layers of each pipeline stage",
    ),
    ({"training.executor": "inline", "resource_pool.actor_rollout": 2}, "training.executor inline runs one process"),
    ({"training.eval_interval": 2}, "training.eval_data_path is missing"),
    ({"training.eval_data_path": "x"}, "training.eval_data_path is never read"),
    ({"training.eval_n_samples_per_prompt": 4}, "training.eval_n_samples_per_prompt is never read"),
    ({f"{ACTOR}.lr_warmup_fraction": 0.1, f"{ACTOR}.lr_warmup_iters": 2}, "say the same thing"),
    ({f"{ACTOR}.lr_warmup_iters": 4}, "must be less than the run's 4 optimizer steps"),
    ({f"{ACTOR}.min_lr": 1}, "min_lr (1.0) must not be greater than lr"),
    ({f"{ACTOR}.save": "ckpt/actor"}, "save is the directory that load reads"),
    ({"algorithm.use_kl_loss": True}, "algorithm.kl_loss_coef is 0"),
    ({"algorithm.kl_loss_coef": 0.1}, "has no effect without algorithm.use_kl_loss: true"),
    ({"algorithm.use_kl_in_reward": True}, "algorithm.kl_ctrl.kl_coef is 0"),
    (
        {"algorithm.use_kl_in_reward": False, "algorithm.kl_ctrl.kl_coef": 0.1},
        "has no effect without algorithm.use_kl_in_reward: true",
    ),
    ({"reward.functions": []}, "reward.functions is missing"),
    ({"reward.functions": "accuracy,accuracy"}, "names 'accuracy' twice"),
    ({"reward.functions": [{"name": "accuracy", "weight": 0}]}, "every weight is 0"),
    (
        {"algorithm.verifier_function": ["acc"]},
        "algorithm.verifier_function and reward.functions name the same thing",
    ),
    ({"algorithm.use_kl_loss": True, "algorithm.kl_loss_coef": 0.1, "resource_pool.ref": []}, "resource_pool.ref"),
    (
        {
            "algorithm.use_kl_loss": True,
            "algorithm.kl_loss_coef": 0.1,
            "actor_rollout_ref.ref.tensor_model_parallel_size": 2,
            "resource_pool.ref": "actor_rollout",
        },
        "roles that share processes need the same TP, PP and VPP",
    ),
    (
        {
            "algorithm.use_kl_loss": True,
            "algorithm.kl_loss_coef": 0.1,
            "actor_rollout_ref.ref.tensor_model_parallel_size": 2,
            "resource_pool.ref": 3,
        },
        "resource_pool.ref (3 processes) must be a multiple",
    ),
]


@pytest.mark.parametrize(("changes", "fragment"), CONTRADICTIONS)
def test_keys_that_contradict_each_other_are_refused(grpo, changes, fragment):
    message = refusal(grpo, changes)
    assert fragment in message and "\n" not in message


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"training.stage": "ray_online_dpo"}, "training.stage: online preference optimization is not available"),
        (
            {"algorithm.adv_estimator": "gae"},
            "algorithm.adv_estimator: gae needs a critic, which stage ray_grpo has not",
        ),
        ({"algorithm.adv_estimator": "grpo"}, "called group_norm here"),
        ({"algorithm.kl_ctrl.type": "adaptive"}, "algorithm.kl_ctrl.type: stage ray_grpo keeps the coefficient"),
        ({"critic.lr": 1}, "critic: only stage ray_ppo trains a critic"),
        ({f"{ACTOR}.cliprange_value": 0.2}, "this section has no such key; write critic.cliprange_value"),
        ({"training.critic_warmup_iters": 1}, "training.critic_warmup_iters: stage ray_grpo does not read this key"),
        ({"reward.verifier": False}, "reward.verifier is false"),
        ({f"{ACTOR}.split": "90,10,0"}, "held-out data has its own files"),
        ({f"{ACTOR}.fp16": True}, "write bf16: true"),
        ({f"{ACTOR}.use_kv_cache": False}, "use_kv_cache is False"),
        ({"algorithm.missing_eos_penalty": 1.0}, "write 0.0"),
        ({"algorithm.advantage_whiten": True}, "stage ray_grpo has no such thing; write false"),
    ],
)
def test_what_is_not_available_is_refused_with_what_to_write(grpo, changes, fragment):
    message = refusal(grpo, changes)
    assert fragment in message and "\n" not in message


@pytest.mark.parametrize(
    "path",
    [
        "training.clip_ratio",
        f"{ACTOR}.n_samples_per_prompt",
        "training.eval_n_samples_per_prompt",
        "training.critic_mini_batch_size",
    ],
)
def test_supervised_stages_refuse_keys_that_they_do_not_read(sft, orm, path):
    assert f"{path}: stage sft does not read this key" in refusal(sft, {path: 2})
    assert f"{path}: stage orm does not read this key" in refusal(orm, {path: 2})


@pytest.mark.parametrize("path", ["actor_rollout_ref.ref.load", "algorithm.adv_estimator", "reward.on_error"])
def test_supervised_stages_refuse_sections_that_they_do_not_read(sft, orm, path):
    section = path.rsplit(".", 1)[0]
    assert f"{section}: stage sft does not read this section" in refusal(sft, {path: "zero"})
    assert f"{section}: stage orm does not read this section" in refusal(orm, {path: "zero"})


def test_a_key_written_with_hyphens_and_with_underscores_is_refused(grpo):
    grpo["training"]["seq-length"] = 64
    with pytest.raises(UserError, match="written twice"):
        build_config(grpo)


def test_a_role_at_both_levels_is_refused(grpo):
    grpo["actor_rollout"] = {"lr": 1}
    with pytest.raises(UserError, match="both at the top level and under actor_rollout_ref"):
        build_config(grpo)


def test_several_mistakes_are_told_together_one_a_line(grpo):
    message = refusal(grpo, {"training.train_iters": "x", f"{ACTOR}.lr": -1, "algorithm.lamm": 1})
    assert len(message.splitlines()) == 3
