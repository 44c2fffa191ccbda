"""What to say about a key that no section has: a near name, its section, or what other toolkits call it."""

from collections.abc import Iterable, Mapping

from mindllm.errors import did_you_mean

# Names of verl and TRL (leaf of the dotted path) -> what to write here.
FOREIGN_NAMES: Mapping[str, str] = {
    "kl_coef": "algorithm.kl_loss_coef (in the loss) or algorithm.kl_ctrl.kl_coef (in the reward)",
    "init_kl_coef": "algorithm.kl_ctrl.kl_coef",
    "adap_kl_ctrl": "algorithm.kl_ctrl.type: adaptive",
    "gae_lambda": "algorithm.lam",
    "lambd": "algorithm.lam",
    "value_clip": "critic.cliprange_value",
    "value_clip_range": "critic.cliprange_value",
    "critic_warmup": "critic.critic_warmup_iters",
    "num_ppo_epochs": "ppo_epochs",
    "reward_model_path": "reward.load (a checkpoint made by convert_ckpt.py or by stage orm)",
    "sft_model_path": "load (a checkpoint made by convert_ckpt.py)",
    "beta": "algorithm.kl_loss_coef with algorithm.use_kl_loss: true",
    "n": "n_samples_per_prompt",
    "n_samples": "n_samples_per_prompt",
    "num_generations": "n_samples_per_prompt",
    "num_return_sequences": "n_samples_per_prompt",
    "epsilon": "clip_ratio (or clip_ratio_low)",
    "cliprange": "clip_ratio",
    "epsilon_low": "clip_ratio_low",
    "epsilon_high": "clip_ratio_high",
    "delta": "clip_ratio_c",
    "max_completion_length": "max_new_tokens",
    "max_response_length": "max_new_tokens",
    "response_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_length": "seq_length",
    "max_model_len": "seq_length",
    "learning_rate": "lr",
    "lr_scheduler_type": "lr_decay_style",
    "warmup_style": "lr_decay_style",
    "warmup_ratio": "lr_warmup_fraction",
    "lr_warmup_steps_ratio": "lr_warmup_fraction",
    "warmup_steps": "lr_warmup_iters",
    "lr_warmup_steps": "lr_warmup_iters",
    "max_grad_norm": "clip_grad",
    "grad_clip": "clip_grad",
    "adam_epsilon": "adam_eps",
    "betas": "adam_beta1 and adam_beta2",
    "entropy_coef": "entropy_coeff",
    "num_iterations": "ppo_epochs",
    "max_steps": "training.train_iters",
    "num_train_epochs": "training.train_iters",
    "total_epochs": "training.train_iters",
    "total_training_steps": "training.train_iters",
    "train_batch_size": "training.global_batch_size (prompts per iteration)",
    "per_device_train_batch_size": "micro_batch_size (the global batch is training.global_batch_size)",
    "gradient_accumulation_steps": "training.global_batch_size (accumulation follows from it)",
    "ppo_micro_batch_size": "micro_batch_size",
    "ppo_micro_batch_size_per_gpu": "micro_batch_size",
    "log_prob_micro_batch_size_per_gpu": "micro_batch_size",
    "ppo_max_token_len_per_gpu": "max_tokens_per_micro_batch",
    "max_num_batched_tokens": "max_tokens_per_micro_batch",
    "max_num_seqs": "num_samples_per_step",
    "model_name_or_path": "load (a checkpoint made by convert_ckpt.py)",
    "train_files": "data_path (a prefix made by preprocess_data.py)",
    "val_files": "training.eval_data_path",
    "reward_funcs": "reward.functions",
    "reward_weights": "the weight of each item of reward.functions",
    "custom_reward_function": "an item of reward.functions with a path",
    "save_steps": "training.save_interval",
    "save_freq": "training.save_interval",
    "eval_steps": "training.eval_interval",
    "test_freq": "training.eval_interval",
    "logging_steps": "training.log_interval",
    "save_total_limit": "training.keep_last_n",
    "max_actor_ckpt_to_keep": "training.keep_last_n",
    "output_dir": "training.run_dir",
    "default_local_dir": "training.run_dir",
    "report_to": "training.trackers",
    "logger": "training.trackers",
    "tensor_parallel_size": "tensor_model_parallel_size",
    "virtual_pipeline_model_parallel_size": "num_layers_per_virtual_pipeline_stage",
    "nnodes": "resource_pool.actor_rollout, a list with one number per node",
    "n_gpus_per_node": "resource_pool.actor_rollout",
    "num_processes": "resource_pool.actor_rollout",
}


def unknown_key(path: str, here: Iterable[str], elsewhere: Mapping[str, Iterable[str]]) -> str:
    """One sentence about the unknown key ``path`` (dotted).

    Args:
        here: keys of the section that ``path`` is in.
        elsewhere: keys of the other sections, by the section's dotted name.
    """
    leaf = path.rsplit(".", 1)[-1].replace("-", "_")
    for section, keys in elsewhere.items():
        if leaf in keys:
            return f"{path}: this section has no such key; write {section}.{leaf}"
    if leaf in FOREIGN_NAMES:
        return f"{path}: unknown key (another toolkit's name); write {FOREIGN_NAMES[leaf]}"
    near = did_you_mean(leaf, here) or did_you_mean(
        leaf, (f"{s}.{key}" for s, keys in elsewhere.items() for key in keys)
    )
    return f"{path}: unknown key{near or '; docs/configuration.md lists all'}"
