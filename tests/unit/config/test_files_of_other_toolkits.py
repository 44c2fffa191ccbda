"""A file of the MindSpeed style composes unchanged; what it sets without effect is named once."""

from pathlib import Path

import pytest

from mindllm.config import build_config, compose_config
from tests.unit.config.conftest import here

MODEL = """
tiny_llama:
  use_mcore_models: true
  sequence_parallel: true
  use_flash_attn: true
  use_rotary_position_embeddings: true
  use_fused_rmsnorm: true
  use_fused_swiglu: true
  use_mc2: true
  num_layers: 16
  hidden_size: 2048
  ffn_hidden_size: 8192
  num_attention_heads: 32
  group_query_attention: true
  num_query_groups: 8
  max_position_embeddings: 8192
  make_vocab_size_divisible_by: 1
  padded_vocab_size: 128256
  untie_embeddings_and_output_weights: False
  disable_bias_linear: true
  position_embedding_type: rope
  rotary_base: 500000
  rope_scaling_type: llama3
  rope_scaling_factor: 32.0
  low_freq_factor: 1.0
  high_freq_factor: 4.0
  original_max_position_embeddings: 8192
  normalization: RMSNorm
  norm_epsilon: 1e-5
  swiglu: true
  attention_dropout: 0.0
  hidden_dropout: 0.0
  init_method_std: 0.01
  attention_softmax_in_fp32: true
  no_masked_softmax_fusion: true
  no_gradient_accumulation_fusion: true
  bf16: true
"""

RUN = """
defaults:
  - model:
      - tiny_llama

training:
  global_batch_size: 64
  seq_length: 512
  tokenizer_type: PretrainedFromHF
  tokenizer_name_or_path: ./model_from_hf
  train_iters: 15000
  distributed_backend: nccl
  no_shared_storage: true
  save_interval: 10000
  no_load_optim: true
  no_load_rng: true
  bf16: true
  is_instruction_dataset: true
  variable_seq_lengths: true
  no_shuffle: true
  stage: ray_grpo
  sequence_parallel: False
  dataset_additional_keys: ['labels']

actor_rollout_ref:
  actor_rollout:
    model: tiny_llama
    do_sample: true
    micro_batch_size: 4
    ppo_mini_batch_size: 1
    num_samples_per_step: 1
    n_samples_per_prompt: 8
    max_prompt_length: 256
    ppo_epochs: 1
    clip_ratio: 0.2
    entropy_coeff: 0.001
    shuffle_minibatch: false
    use_kv_cache: true
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 1
    inference_tensor_model_parallel_size: 4
    num_gpus_for_train: 8
    num_gpus_for_infer: 0
    lr: 1e-7
    lr_decay_style: constant
    min_lr: 0.0
    weight_decay: 0.0
    lr_warmup_fraction: 0.0
    clip_grad: 1.0
    adam_beta1: 0.9
    adam_beta2: 0.999
    initial_loss_scale: 4096
    finetune: true
    load: ./ckpt
    save: ./ckpt_out
    pad_to_multiple_of: 8
    data_path: ./dataset/train
    split: 100,0,0
    temperature: 1.0
    top_k: -1
    top_p: 1.0
    max-tokens-to-oom: 40960
    dataset_category: "1,0"
  ref:
    model: tiny_llama
    tensor_model_parallel_size: 4
    pipeline_model_parallel_size: 1
    micro_batch_size: 8
    load: ./ckpt

reward:
  verifier: true

algorithm:
  gamma: 1.0
  lam: 0.95
  adv_estimator: group_norm
  kl_penalty: low_var_kl
  kl_ctrl:
    type: fixed
    kl_coef: 0.05
    target_kl: 0.1
    horizon: 1000
  missing_eos_penalty: 0.0
  verifier_function: ["acc", "format"]
  verifier_weight: [1.0, 0.5]
  advantage_whiten: false

resource_pool:
  actor_rollout: [8]
  ref: [4]
  critic: []
  reward: []
"""


@pytest.fixture
def brought(config_dir: Path):
    (config_dir / "model" / "tiny_llama.yaml").write_text(MODEL)
    (config_dir / "brought.yaml").write_text(RUN)
    return compose_config("brought", [], str(config_dir))


def test_a_brought_file_means_here_what_it_meant_there(brought):
    assert brought.training.stage == "ray_grpo" and brought.training.no_shuffle
    assert brought.actor.lr == 1e-7 and brought.actor.bf16 and brought.actor.clip_ratio_high == 0.2
    assert brought.actor.max_new_tokens == 256 and brought.actor.sequence_parallel is False
    assert brought.actor.model_keys["rope_scaling_factor"] == 32.0 and brought.actor.model_keys["norm_epsilon"] == 1e-5
    assert [(item.name, item.weight) for item in brought.reward.functions] == [("accuracy", 1.0), ("format", 0.5)]
    assert brought.algorithm.use_kl_in_reward and brought.algorithm.kl_penalty == "low_var_kl"
    assert brought.resource_pool.per_node("ref") == [4] and brought.ref.micro_batch_size == 8
    assert brought.data_parallel_size("actor") == 2 and brought.data_parallel_size("ref") == 1


def test_every_key_without_effect_is_named_once_with_what_happens_instead(brought):
    named = [key for key, _ in brought.ignored_keys]
    assert len(named) == len(set(named)) and all(sentence for _, sentence in brought.ignored_keys)
    prefix = "actor_rollout_ref.actor_rollout"
    assert {
        "training.distributed_backend",
        "training.no_load_optim",
        "model.tiny_llama.use_flash_attn",
        f"{prefix}.max_tokens_to_oom",
        f"{prefix}.dataset_category",
        f"{prefix}.split",
        f"{prefix}.inference_tensor_model_parallel_size",
        f"{prefix}.ppo_mini_batch_size",
        "algorithm.gamma",
        "algorithm.kl_ctrl.target_kl",
    } <= set(named)
    assert f"{prefix}.entropy_coeff" not in named and f"{prefix}.lr" not in named


PPO_RUN = (
    RUN[: RUN.index("\nreward:")]
    .replace("stage: ray_grpo", "stage: ray_ppo")
    .replace("n_samples_per_prompt: 8", "n_samples_per_prompt: 1")
    .replace("do_sample: true", "do_sample: false")
    + """
critic:
  model: tiny_llama
  use_mcore_models: true
  use_distributed_optimizer: true
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  micro_batch_size: 4
  critic_mini_batch_size: 1
  critic_update_epochs: 1
  cliprange_value: 0.5
  lr: 1e-6
  lr_decay_style: cosine
  min_lr: 1e-7
  weight_decay: 0.01
  lr_warmup_fraction: 0.01
  clip_grad: 1.0
  adam_beta1: 0.9
  adam_beta2: 0.95
  initial_loss_scale: 4096
  finetune: true
  load: ./rm
  save: ./critic_out
  data_path: ./dataset/train
  split: 100,0,0

reward:
  model: tiny_llama
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  micro_batch_size: 4
  sequence_parallel: False
  load: ./rm

algorithm:
  gamma: 1.0
  lam: 0.95
  adv_estimator: gae
  kl_penalty: kl
  kl_ctrl:
    type: fixed
    kl_coef: 0.05
  missing_eos_penalty: 0.0
  advantage_whiten: True

resource_pool:
  actor_rollout: [8]
  ref: [4]
  critic: [8]
  reward: [4]
"""
)


def test_a_brought_ppo_file_means_here_what_it_meant_there(config_dir: Path):
    (config_dir / "model" / "tiny_llama.yaml").write_text(MODEL)
    (config_dir / "brought.yaml").write_text(PPO_RUN)
    config = compose_config("brought", [], str(config_dir))
    assert config.training.stage == "ray_ppo" and config.actor.do_sample is False
    assert (config.critic.lr, config.critic.cliprange_value, config.critic.critic_mini_batch_size) == (1e-6, 0.5, 1)
    assert config.critic.pipeline_model_parallel_size == 2 and config.critic.model_keys["num_layers"] == 16
    assert config.critic.save == here("critic_out") and config.actor.save == here("ckpt_out")
    assert config.reward_model.load == here("rm") and config.reward_model.tokenizer_name_or_path is None
    assert config.algorithm.use_kl_in_reward and config.algorithm.kl_ctrl.kl_coef == 0.05
    assert config.algorithm.whitens("step")
    assert {role: config.per_node(role) for role in config.roles()} == {
        "actor_rollout": [8],
        "ref": [4],
        "critic": [8],
        "reward": [4],
    }
    named = dict(config.ignored_keys)
    assert {"critic.finetune", "critic.use_mcore_models", "critic.data_path", "critic.split"} <= named.keys()
    assert not {"critic.use_distributed_optimizer", "reward.sequence_parallel", "algorithm.gamma"} & named.keys()


def test_the_earliest_form_with_roles_at_the_top_level_and_separate_generation_is_read(config_dir: Path):
    lines = PPO_RUN.replace("num_gpus_for_infer: 0", "num_gpus_for_infer: 4").replace(
        "_rollout: [8]", "_rollout: [8, 4]"
    )
    head, _, rest = lines.partition("actor_rollout_ref:\n")
    roles, _, tail = rest.partition("\ncritic:")
    text = head + "\n".join(line.removeprefix("  ") for line in roles.splitlines()) + "\n\ncritic:" + tail
    (config_dir / "model" / "tiny_llama.yaml").write_text(MODEL)
    (config_dir / "brought.yaml").write_text(text)
    config = compose_config("brought", [], str(config_dir))
    assert (config.per_node("actor_rollout"), config.per_node("rollout")) == ([8], [4])
    assert config.data_parallel_size("rollout") == 1 and config.ref.load == here("ckpt")


def test_a_brought_grpo_file_may_score_with_a_reward_model(config_dir: Path):
    text = RUN.replace("  verifier: true", "  verifier: false\n  load: ./rm").replace("  reward: []", "  reward: [1]")
    (config_dir / "model" / "tiny_llama.yaml").write_text(MODEL)
    (config_dir / "brought.yaml").write_text(text)
    config = compose_config("brought", [], str(config_dir))
    assert config.reward_model.load == here("rm") and config.reward.functions == []


def test_sections_of_roles_with_an_empty_pool_are_named_and_not_read(grpo):
    grpo["critic"] = {"lr": 1e-6}
    grpo["reward"]["load"] = "ckpt/rm"
    grpo["resource_pool"] = {"critic": [], "reward": []}
    named = dict(build_config(grpo).ignored_keys)
    assert {"critic", "reward.load"} <= named.keys()


@pytest.mark.parametrize("split", ["100,0,0", [100, 0, 0], "100, 0, 0"])
def test_the_split_that_trains_on_everything_is_accepted(grpo, split):
    grpo["training"]["split"] = split
    assert "training.split" in dict(build_config(grpo).ignored_keys)


@pytest.mark.parametrize(("brought_name", "ours"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_the_short_names_of_kl_estimators_are_read(grpo, brought_name, ours):
    grpo["algorithm"] = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": brought_name}
    assert build_config(grpo).algorithm.kl_loss_type == ours


def test_a_minimum_learning_rate_under_a_constant_schedule_is_named(grpo):
    grpo["training"]["min_lr"] = 1e-6
    assert "training.min_lr" in dict(build_config(grpo).ignored_keys)
