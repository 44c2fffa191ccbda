"""A name that another toolkit has gets an answer of its own; none is taken for a key that only looks like it."""

import re

import pytest

from mindllm.config import build_config
from mindllm.config.architecture import ARCHITECTURE_KEYS
from mindllm.config.cli import parse_command
from mindllm.config.foreign import foreign_answer, unknown_section
from mindllm.config.foreign_names import ABSENT, RENAMED, SECTIONS_ELSEWHERE
from mindllm.config.layers import ALLOWED_IN_ROLE, KEYS_BY_SECTION, SECTIONS
from mindllm.convert.cli import build_parser as convert_parser
from mindllm.convert.cli import main as convert
from mindllm.errors import UserError
from mindllm.preprocess.flags import build_parser as preprocess_parser
from mindllm.preprocess.flags import parse as preprocess

ACTOR = "actor_rollout_ref.actor_rollout"
OURS = frozenset().union(ARCHITECTURE_KEYS, *KEYS_BY_SECTION.values(), *ALLOWED_IN_ROLE.values())

# What users of each toolkit really write -> what the answer must say.
TRL = {
    "num_generations": "write n_samples_per_prompt",
    "max_completion_length": "write max_new_tokens",
    "learning_rate": "write lr",
    "per_device_train_batch_size": "write micro_batch_size",
    "loss_type": "write loss_agg_mode",
    "scale_rewards": "write algorithm.adv_estimator",
    "use_vllm": "the built-in engine",
    "vllm_gpu_memory_utilization": "the built-in engine",
    "gradient_checkpointing": "max_tokens_per_micro_batch",
    "deepspeed": "use_distributed_optimizer",
    "fsdp_config": "use_distributed_optimizer",
    "use_peft": "convert_ckpt.py --lora-load",
    "lora_r": "convert_ckpt.py --lora-load",
    "load_in_4bit": "bf16",
    "attn_implementation": "fastest kernel",
    "dataset_name": "preprocess_data.py",
    "packing": "preprocess_data.py --pack",
    "repetition_penalty": "temperature, top_k, top_p",
    "min_p": "temperature, top_k, top_p",
    "push_to_hub": "training.export_hf",
    "resume_from_checkpoint": "the same training.run_dir",
    "run_name": "write training.wandb_exp_name",
    "report_to": "write training.trackers",
    "optim": "AdamW",
    "vf_coef": "separate models",
}
VERL = {
    "rollout_n": "write n_samples_per_prompt",
    "gpu_memory_utilization": "the built-in engine",
    "enforce_eager": "the built-in engine",
    "param_offload": "use more processes",
    "ppo_micro_batch_size_per_gpu": "write micro_batch_size",
    "use_dynamic_bsz": "write max_tokens_per_micro_batch",
    "norm_adv_by_std_in_grpo": "write algorithm.adv_estimator",
    "filter_groups": "not drawn again",
    "overlong_buffer": "reward.functions",
    "project_name": "write training.wandb_project",
    "experiment_name": "write training.wandb_exp_name",
    "val_before_train": "training.eval_interval",
    "multi_turn": "one response",
    "trust_remote_code": "built in",
    "lora_rank": "convert_ckpt.py --lora-load",
    "strategy": "use_distributed_optimizer",
    "n_gpus_per_node": "write resource_pool.actor_rollout",
    "loss_mode": "loss_agg_mode",
}
SWIFT = {
    "train_type": "convert_ckpt.py --lora-load",
    "tuner_type": "convert_ckpt.py --lora-load",
    "dynamic_sample": "not drawn again",
    "max_resample_times": "not drawn again",
    "soft_cache_length": "reward.functions",
    "val_dataset": "preprocess_data.py",
    "torch_dtype": "write bf16",
    "attn_impl": "fastest kernel",
    "rlhf_type": "write training.stage",
    "external_plugins": "write an item of reward.functions",
    "loss_scale": "--train-on-history",
    "multi_turn_scheduler": "one response",
    "swanlab_project": "jsonl, tensorboard and wandb",
    "offload_optimizer": "use more processes",
    "template": "preprocess_data.py",
    "move_model_batches": None,
}
MINDSPEED = {
    "kl_ctrl_type": "write algorithm.kl_ctrl.type",
    "init_kl_coef": "write algorithm.kl_ctrl.kl_coef",
    "actor_forward_micro_batch_size": "write micro_batch_size",
    "mini_batch_size": "write ppo_mini_batch_size",
    "rule_reward": "write reward.functions",
    "actor_resource": "write resource_pool.actor_rollout",
    "use_integrated_worker": "resource_pool says",
    "infer_tensor_parallel_size": "write inference_tensor_model_parallel_size",
    "token_level_loss": "write loss_agg_mode: token-mean",
    "clip_higher_enable": "write clip_ratio_high",
    "recompute_granularity": "max_tokens_per_micro_batch",
    "prompt_type": "preprocess_data.py",
    "lr_decay_iters": "lr_decay_style",
    "eval_iters": "training.eval_interval",
    "tensorboard_dir": "jsonl, tensorboard and wandb",
    "moe_grouped_gemm": "experts",
}
KNOWN = [(name, answer) for names in (TRL, VERL, SWIFT, MINDSPEED) for name, answer in names.items()]


@pytest.mark.parametrize(("name", "answer"), KNOWN, ids=lambda value: str(value)[:30])
def test_a_name_of_another_toolkit_gets_an_answer_of_its_own(grpo, name, answer):
    grpo["actor_rollout_ref"]["actor_rollout"][name] = 1
    with pytest.raises(UserError) as refused:
        build_config(grpo)
    sentence = str(refused.value)
    assert sentence.startswith(f"{ACTOR}.{name}: unknown key") and "\n" not in sentence
    assert "did you mean" not in sentence and len(sentence) < 300
    assert (answer or "docs/configuration.md lists every key") in sentence


def test_every_key_that_is_written_instead_exists():
    for name, answer in RENAMED.items():
        first = re.match(r"the weight of each item of|an item of", answer)
        target = answer[first.end() :].strip() if first else answer
        key = re.match(r"[\w.]+", target)[0]
        section, _, leaf = key.rpartition(".")
        assert leaf in (KEYS_BY_SECTION[section] if section in KEYS_BY_SECTION else OURS) or (
            section == f"{ACTOR.split('.')[0]}.ref" or section == "algorithm.kl_ctrl"
        ), name


def test_no_key_of_ours_is_taken_for_a_name_of_another_toolkit():
    assert [name for name in RENAMED if name in OURS] == []
    assert {key for key in OURS if foreign_answer(key)} == set()


@pytest.mark.parametrize("name", ["tokenizer_name_or_pth", "lr_decay_stlye", "eval_intervall", "loadd"])
def test_a_misspelling_of_a_key_of_ours_is_not_taken_for_a_name_of_another_toolkit(sft, name):
    sft["training"][name] = 1
    with pytest.raises(UserError, match="did you mean"):
        build_config(sft)


def test_sections_of_other_toolkits_name_the_section_here_and_what_their_keys_are_called(grpo):
    assert all(
        home.split(" ")[0].rstrip(",") in (*SECTIONS, "reward.functions") for home in SECTIONS_ELSEWHERE.values()
    )
    grpo["actor_rollout_ref"]["actor"] = {"optim": {"lr_warmup_steps_ratio": 0.1}, "grad_clip": 1.0}
    with pytest.raises(UserError) as refused:
        build_config(grpo)
    sentence = str(refused.value)
    assert f"actor_rollout_ref.actor: unknown section (another toolkit's name); write its keys in {ACTOR}" in sentence
    assert "lr_warmup_steps_ratio -> lr_warmup_fraction" in sentence and "grad_clip -> clip_grad" in sentence


def test_a_section_with_many_foreign_keys_is_answered_briefly(grpo):
    grpo["data"] = dict.fromkeys(list(RENAMED)[:60], 1)
    with pytest.raises(UserError, match="and 52 more; the sections are") as refused:
        build_config(grpo)
    assert len(str(refused.value)) < 1200


@pytest.mark.parametrize(
    ("key", "value", "fragment"),
    [
        ("stage", "dpo", "preference optimization is not available"),
        ("stage", "ray_dapo", "write ray_grpo with loss_agg_mode"),
        ("stage", "rm", "stage orm"),
        ("stage", "grppo", "did you mean 'grpo'?"),
    ],
)
def test_a_stage_of_another_toolkit_gets_an_answer_too(grpo, key, value, fragment):
    grpo["training"][key] = value
    with pytest.raises(UserError) as refused:
        build_config(grpo)
    assert str(refused.value).startswith(f"training.{key}") and fragment in str(refused.value)


@pytest.mark.parametrize(
    ("flag", "fragment"),
    [
        (
            "--train-iters",
            "unknown argument --train-iters: keys are written without dashes, training.train_iters=VALUE",
        ),
        ("--training.lr=1", "keys are written without dashes, training.lr=VALUE"),
        ("--lr=1", f"keys are written without dashes, {ACTOR}.lr=VALUE"),
        ("--use_vllm", "the built-in engine"),
        ("--learning-rate", "write lr"),
        ("--config-path", "write --config-dir"),
        ("--config", "write --config-name"),
        ("--confg-name", "did you mean '--config-name'?"),
        ("--chek", "did you mean '--check'?"),
        ("--blah", "unknown argument --blah; --help lists all"),
    ],
)
def test_a_flag_of_the_trainer_is_answered(flag, fragment):
    with pytest.raises(UserError) as refused:
        parse_command(["--config-name", "x", flag])
    assert fragment in str(refused.value)


@pytest.mark.parametrize(
    ("flag", "fragment"),
    [
        ("--lora-r", "--lora-load DIR is all it takes"),
        ("--lora-alpha", "--lora-load DIR is all it takes"),
        ("--merge_lora", "--lora-load DIR is all it takes"),
        ("--save-lora-to-hf", "merged into the weights"),
        ("--orm", "write --head reward"),
        ("--loader", "--load-model-type and --save-model-type"),
        ("--use-mcore-models", "--load-model-type and --save-model-type"),
        ("--tensor-model-parallel-size", "write --target-tensor-parallel-size"),
        ("--hf-cfg-dir", "write --hf-dir"),
        ("--torch_dtype", "write --params-dtype"),
        ("--moe-grouped-gemm", "read from the model itself"),
        ("--tokenizer-model", "copied with the model"),
        ("--laod-dir", "did you mean '--load-dir'?"),
    ],
)
def test_a_flag_of_another_converter_is_answered(flag, fragment, capsys):
    assert convert([flag, "x"]) == 2
    assert fragment in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "fragment"),
    [
        ("--json-keys", "write --map-keys"),
        ("--dataset-impl", "memory-mapped"),
        ("--preprocessing_num_workers", "write --workers"),
        ("--cutoff_len", "write --seq-length"),
        ("--neat_packing", "write --neat-pack"),
        ("--template", "write --prompt-type"),
        ("--enable-thinking", "write --thinking"),
        ("--tokenizer-not-use-fast", "the tokenizer that Hugging Face loads"),
        ("--dataset", "write --input"),
        ("--seqlength", "did you mean '--seq-length'?"),
    ],
)
def test_a_flag_of_another_preprocessor_is_answered(flag, fragment):
    with pytest.raises(UserError) as refused:
        preprocess([flag, "x"])
    assert fragment in str(refused.value)


def test_the_flags_that_are_written_instead_exist():
    from mindllm.convert.cli import _FLAGS_ELSEWHERE as CONVERT
    from mindllm.preprocess.flags import _FLAGS_ELSEWHERE as PREPROCESS

    for parser, answers in ((convert_parser(), CONVERT), (preprocess_parser(), PREPROCESS)):
        flags = {flag for action in parser._actions for flag in action.option_strings}
        for answer in answers.values():
            assert set(re.findall(r"--[\w-]+", answer)) <= flags
        assert not {flag.strip("-").replace("-", "_") for flag in flags} & {
            name for names in answers for name in names.split()
        }


def test_what_is_said_of_absent_names_points_at_keys_that_exist():
    for answer in ABSENT.values():
        for section, key in re.findall(r"\b(training|algorithm|reward|critic)\.(\w+)", answer):
            assert key in KEYS_BY_SECTION[section], answer


@pytest.mark.parametrize(
    ("section", "keys", "said"),
    [
        ("policy", {"model_name": "m"}, "write its keys in actor_rollout_ref.actor_rollout; .*model_name -> load"),
        ("grpo", {"num_prompts_per_step": 32}, "num_prompts_per_step -> training.global_batch_size"),
        ("loss_fn", {"ratio_clip_min": 0.2}, "ratio_clip_min -> clip_ratio_low"),
        ("cluster", {"gpus_per_node": 8}, "write its keys in resource_pool; .*gpus_per_node -> resource_pool"),
        ("checkpointing", {"save_period": 10}, "save_period -> training.save_interval"),
        ("logger", {"wandb_enabled": True}, "wandb_enabled -> training.trackers"),
        ("env", {"math": {"num_workers": 8}}, "write its keys in reward.functions"),
    ],
)
def test_sections_of_nemo_rl_are_answered(section, keys, said):
    assert re.search(said, unknown_section(section, keys, SECTIONS))
