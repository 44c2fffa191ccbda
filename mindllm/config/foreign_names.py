"""What other toolkits call things, and what to do here instead.

Names are those of TRL and Hugging Face's trainer, verl, ms-swift, MindSpeed and Megatron, OpenRLHF, slime and NeMo RL:
the last part of a dotted key, or a flag without its dashes.
"""

from collections.abc import Mapping

# Name -> the key to write instead, with what needs to be known.
RENAMED: Mapping[str, str] = {
    # KL terms and the reference
    "reference_policy_kl_penalty": "algorithm.kl_loss_coef with algorithm.use_kl_loss: true",
    "reference_policy_kl_type": "algorithm.kl_loss_type (in the loss) or algorithm.kl_penalty (in the reward)",
    "kl_in_reward": "algorithm.use_kl_in_reward",
    "kl_coef": "algorithm.kl_loss_coef (in the loss) or algorithm.kl_ctrl.kl_coef (in the reward)",
    "init_kl_coef": "algorithm.kl_ctrl.kl_coef",
    "kl_ctrl_type": "algorithm.kl_ctrl.type",
    "adap_kl_ctrl": "algorithm.kl_ctrl.type: adaptive",
    "kl_target": "algorithm.kl_ctrl.target_kl",
    "kl_horizon": "algorithm.kl_ctrl.horizon",
    "kl_estimator": "algorithm.kl_loss_type (in the loss) or algorithm.kl_penalty (in the reward)",
    "beta": "algorithm.kl_loss_coef with algorithm.use_kl_loss: true",
    "ref_model": "actor_rollout_ref.ref.load (a checkpoint made by convert_ckpt.py)",
    "ref_load": "actor_rollout_ref.ref.load",
    "ref_forward_micro_batch_size": "actor_rollout_ref.ref.micro_batch_size",
    # Advantages and the policy's loss
    "normalize_rewards": "algorithm.adv_estimator: group_norm (divided) or group_mean (not divided)",
    "disable_grpo_std_normalization": "algorithm.adv_estimator: group_mean",
    "use_leave_one_out_baseline": "algorithm.adv_estimator: group_mean (the mean of the whole group)",
    "ratio_clip_min": "clip_ratio_low",
    "ratio_clip_max": "clip_ratio_high",
    "ratio_clip_c": "clip_ratio_c",
    "dual_clip": "clip_ratio_c",
    "entropy_loss_coef": "entropy_coeff",
    "calculate_per_token_loss": "loss_agg_mode: token-mean",
    "data_loader_seed": "training.seed",
    "num_steps_per_rollout": "ppo_mini_batch_size (sequences per optimizer step)",
    "advantage_estimator": "algorithm.adv_estimator",
    "scale_rewards": "algorithm.adv_estimator: group_norm (scaled) or group_mean (not scaled)",
    "norm_adv_by_std_in_grpo": "algorithm.adv_estimator: group_norm (divided) or group_mean (not divided)",
    "gae_lambda": "algorithm.lam",
    "lambd": "algorithm.lam",
    "normalize_advantages": "algorithm.advantage_whiten (stage ray_ppo)",
    "whiten_advantages": "algorithm.advantage_whiten (stage ray_ppo)",
    "epsilon": "clip_ratio (or clip_ratio_low)",
    "cliprange": "clip_ratio",
    "eps_clip": "clip_ratio",
    "epsilon_low": "clip_ratio_low",
    "epsilon_high": "clip_ratio_high",
    "eps_clip_high": "clip_ratio_high",
    "clip_higher_enable": "clip_ratio_high, greater than clip_ratio_low",
    "delta": "clip_ratio_c",
    "entropy_coef": "entropy_coeff",
    "loss_type": "loss_agg_mode (dapo: token-mean, grpo: seq-mean-token-mean, dr_grpo: seq-mean-token-sum-norm)",
    "token_level_loss": "loss_agg_mode: token-mean",
    "num_iterations": "ppo_epochs",
    "num_ppo_epochs": "ppo_epochs",
    "epochs": "ppo_epochs (passes over an iteration's responses) or training.train_iters (length of the run)",
    "shuffle_mini_batch": "shuffle_minibatch",
    # The critic and the rewards
    "freezing_actor_steps": "critic.critic_warmup_iters",
    "critic_pretrain": "critic.load (a checkpoint made by convert_ckpt.py --head reward)",
    "reward_pretrain": "reward.load (a checkpoint made by convert_ckpt.py or by stage orm)",
    "reward_model_plugin": "an item of reward.functions with a path",
    "custom_rm_path": "an item of reward.functions with a path",
    "reward_kwargs": "reward.functions, an item of which has args",
    "rm_type": "reward.functions",
    "value_clip": "critic.cliprange_value",
    "value_clip_range": "critic.cliprange_value",
    "critic_warmup": "critic.critic_warmup_iters",
    "critic_learning_rate": "critic.lr",
    "value_model_path": "critic.load (a checkpoint made by convert_ckpt.py --head reward)",
    "reward_model": "reward.load (a checkpoint made by convert_ckpt.py or by stage orm)",
    "reward_model_path": "reward.load (a checkpoint made by convert_ckpt.py or by stage orm)",
    "reward_funcs": "reward.functions",
    "reward_weights": "the weight of each item of reward.functions",
    "custom_reward_function": "an item of reward.functions with a path",
    "external_plugins": "an item of reward.functions with a path",
    "rule_reward": "reward.functions",
    # Models and data
    "model_name": "load (a checkpoint made by convert_ckpt.py)",
    "path": "load (a checkpoint made by convert_ckpt.py)",
    "prompt_data": "data_path (a prefix made by preprocess_data.py)",
    "eval_prompt_data": "training.eval_data_path",
    "shuffle": "training.no_shuffle (the opposite)",
    "rollout_shuffle": "training.no_shuffle (the opposite)",
    "model_name_or_path": "load (a checkpoint made by convert_ckpt.py)",
    "model_path": "load (a checkpoint made by convert_ckpt.py)",
    "pretrain": "load (a checkpoint made by convert_ckpt.py)",
    "pretrained_checkpoint": "load",
    "hf_checkpoint": "load (a checkpoint made by convert_ckpt.py)",
    "sft_model_path": "load (a checkpoint made by convert_ckpt.py)",
    "tokenizer": "tokenizer_name_or_path",
    "tokenizer_path": "tokenizer_name_or_path",
    "train_files": "data_path (a prefix made by preprocess_data.py)",
    "train_data_path": "data_path (a prefix made by preprocess_data.py)",
    "val_files": "training.eval_data_path",
    "valid_data_path": "training.eval_data_path",
    # Lengths and sampling
    "num_generations_per_prompt": "n_samples_per_prompt",
    "n_samples_per_eval_prompt": "training.eval_n_samples_per_prompt",
    "max_total_sequence_length": "seq_length",
    "rollout_top_p": "top_p",
    "rollout_top_k": "top_k",
    "rollout_stop_token_ids": "eos_token_ids",
    "n": "n_samples_per_prompt",
    "n_samples": "n_samples_per_prompt",
    "num_generations": "n_samples_per_prompt",
    "num_return_sequences": "n_samples_per_prompt",
    "rollout_n": "n_samples_per_prompt",
    "num_generations_eval": "training.eval_n_samples_per_prompt",
    "max_completion_length": "max_new_tokens",
    "max_response_length": "max_new_tokens",
    "response_length": "max_new_tokens",
    "rollout_max_response_len": "max_new_tokens",
    "rollout_max_tokens": "max_new_tokens",
    "generate_max_len": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "prompt_length": "max_prompt_length",
    "prompt_max_len": "max_prompt_length",
    "max_length": "seq_length",
    "max_len": "seq_length",
    "max_seq_length": "seq_length",
    "max_model_len": "seq_length",
    "vllm_max_model_len": "seq_length",
    "vllm_max_model_length": "seq_length",
    "rollout_temperature": "temperature",
    "max_num_seqs": "num_samples_per_step",
    "vllm_max_num_seqs": "num_samples_per_step",
    "stop_token": "eos_token_ids",
    "stop_token_id": "eos_token_ids",
    # Batches and the length of the run
    "num_prompts_per_step": "training.global_batch_size (prompts per iteration)",
    "batch_size": "training.global_batch_size (prompts per iteration)",
    "max_num_steps": "training.train_iters",
    "max_num_epochs": "training.train_iters",
    "train_global_batch_size": "ppo_mini_batch_size (sequences per optimizer step)",
    "train_micro_batch_size": "micro_batch_size",
    "logprob_batch_size": "micro_batch_size",
    "local_rollout_forward_batch_size": "micro_batch_size",
    "gradient_accumulation": "training.global_batch_size (accumulation follows from it)",
    "train_max_tokens_per_gpu": "max_tokens_per_micro_batch",
    "rollout_max_tokens_per_gpu": "max_tokens_per_micro_batch",
    "log_probs_max_tokens_per_gpu": "max_tokens_per_micro_batch",
    "use_dynamic_batch": "max_tokens_per_micro_batch (micro-batches are always filled by tokens)",
    "use_dynamic_batch_size": "max_tokens_per_micro_batch (micro-batches are always filled by tokens)",
    "dynamic_batching": "max_tokens_per_micro_batch (micro-batches are always filled by tokens)",
    "max_steps": "training.train_iters",
    "num_train_epochs": "training.train_iters",
    "num_epochs": "training.train_iters",
    "max_epochs": "training.train_iters",
    "total_epochs": "training.train_iters",
    "total_episodes": "training.train_iters",
    "num_episodes": "training.train_iters",
    "num_rollout": "training.train_iters",
    "total_training_steps": "training.train_iters",
    "train_batch_size": "training.global_batch_size (prompts per iteration)",
    "rollout_batch_size": "training.global_batch_size (prompts per iteration)",
    "generation_batch_size": "training.global_batch_size x n_samples_per_prompt",
    "gen_batch_size": "training.global_batch_size (prompts per iteration)",
    "steps_per_generation": "ppo_mini_batch_size (sequences per optimizer step)",
    "num_mini_batches": "ppo_mini_batch_size (sequences per optimizer step)",
    "mini_batch_size": "ppo_mini_batch_size (sequences per optimizer step)",
    "local_mini_batch_size": "ppo_mini_batch_size (sequences per optimizer step)",
    "per_device_train_batch_size": "micro_batch_size (the global batch is training.global_batch_size)",
    "per_device_eval_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "training.global_batch_size (accumulation follows from it)",
    "ppo_micro_batch_size": "micro_batch_size",
    "ppo_micro_batch_size_per_gpu": "micro_batch_size",
    "micro_batch_size_per_gpu": "micro_batch_size",
    "micro_train_batch_size": "micro_batch_size",
    "micro_rollout_batch_size": "micro_batch_size",
    "actor_forward_micro_batch_size": "micro_batch_size",
    "log_prob_micro_batch_size": "micro_batch_size",
    "log_prob_micro_batch_size_per_gpu": "micro_batch_size",
    "ppo_max_token_len_per_gpu": "max_tokens_per_micro_batch",
    "log_prob_max_token_len_per_gpu": "max_tokens_per_micro_batch",
    "forward_max_token_len_per_gpu": "max_tokens_per_micro_batch",
    "max_tokens_per_gpu": "max_tokens_per_micro_batch",
    "max_num_batched_tokens": "max_tokens_per_micro_batch",
    "use_dynamic_bsz": "max_tokens_per_micro_batch (micro-batches are always filled by tokens)",
    # Optimizer
    "lr_scheduler": "lr_decay_style",
    "scheduler": "lr_decay_style, lr_warmup_iters and min_lr",
    "l2": "weight_decay",
    "precision": "bf16: true (bfloat16) or false (float32)",
    "learning_rate": "lr",
    "actor_learning_rate": "lr",
    "lr_scheduler_type": "lr_decay_style",
    "warmup_style": "lr_decay_style",
    "min_lr_ratio": "min_lr (a learning rate, not a ratio)",
    "warmup_ratio": "lr_warmup_fraction",
    "lr_warmup_ratio": "lr_warmup_fraction",
    "lr_warmup_steps_ratio": "lr_warmup_fraction",
    "warmup_steps": "lr_warmup_iters",
    "lr_warmup_steps": "lr_warmup_iters",
    "max_grad_norm": "clip_grad",
    "grad_clip": "clip_grad",
    "max_norm": "clip_grad",
    "adam_epsilon": "adam_eps",
    "betas": "adam_beta1 and adam_beta2",
    "adam_betas": "adam_beta1 and adam_beta2",
    "dtype": "bf16: true (bfloat16) or false (float32)",
    "torch_dtype": "bf16: true (bfloat16) or false (float32)",
    "params_dtype": "bf16: true (bfloat16) or false (float32)",
    "bf16_full_eval": "bf16",
    "data_seed": "training.seed",
    "full_determinism": "training.seed (equal runs give equal results)",
    # Saving, evaluation, logging
    "save_period": "training.save_interval",
    "val_period": "training.eval_interval",
    "keep_top_k": "training.keep_last_n",
    "max_ckpt_num": "training.keep_last_n",
    "checkpoint_dir": "training.run_dir",
    "default_hdfs_dir": "training.run_dir",
    "wandb_enabled": "training.trackers: jsonl,wandb",
    "tensorboard_enabled": "training.trackers: jsonl,tensorboard",
    "wandb_org": "training.wandb_entity",
    "save_hf_ckpt": "training.export_hf",
    "validation_data_dir": "training.eval_data_path",
    "num_completions_to_print": "training.sample_dump_interval (responses are in samples/ of the run)",
    "num_val_samples_to_print": "training.sample_dump_interval (evaluations are in metrics.jsonl)",
    "save_debug_rollout_data": "training.sample_dump_interval (responses are in samples/ of the run)",
    "save_steps": "training.save_interval",
    "save_freq": "training.save_interval",
    "eval_steps": "training.eval_interval",
    "eval_freq": "training.eval_interval",
    "test_freq": "training.eval_interval",
    "logging_steps": "training.log_interval",
    "save_strategy": "training.save_interval (iterations)",
    "eval_strategy": "training.eval_interval (iterations)",
    "logging_strategy": "training.log_interval (iterations)",
    "save_total_limit": "training.keep_last_n",
    "max_actor_ckpt_to_keep": "training.keep_last_n",
    "max_critic_ckpt_to_keep": "training.keep_last_n",
    "output_dir": "training.run_dir",
    "default_local_dir": "training.run_dir",
    "save_path": "training.run_dir",
    "ckpt_path": "training.run_dir",
    "report_to": "training.trackers",
    "logger": "training.trackers",
    "use_wandb": "training.trackers: jsonl,wandb",
    "use_tensorboard": "training.trackers: jsonl,tensorboard",
    "project": "training.wandb_project",
    "project_name": "training.wandb_project",
    "experiment_name": "training.wandb_exp_name",
    "run_name": "training.wandb_exp_name",
    "wandb_name": "training.wandb_exp_name",
    "wandb_run_name": "training.wandb_exp_name",
    "wandb_team": "training.wandb_entity",
    "log_completions": "training.sample_dump_interval (prompts, responses and rewards are in samples/ of the run)",
    "log_val_generations": "training.sample_dump_interval (evaluations are in metrics.jsonl)",
    "rollout_data_dir": "training.sample_dump_interval (prompts, responses and rewards are in samples/ of the run)",
    # Processes
    "gpus_per_node": "resource_pool.actor_rollout",
    "critic_num_nodes": "resource_pool.critic",
    "critic_num_gpus_per_node": "resource_pool.critic",
    "ref_num_nodes": "resource_pool.ref",
    "ref_num_gpus_per_node": "resource_pool.ref",
    "ref_resource": "resource_pool.ref",
    "reward_resource": "resource_pool.reward",
    "reward_num_nodes": "resource_pool.reward",
    "reward_num_gpus_per_node": "resource_pool.reward",
    "world_size": "resource_pool.actor_rollout",
    "integrated_mode": "num_gpus_for_infer (0: the processes that train also generate)",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "tp_size": "tensor_model_parallel_size",
    "pp_size": "pipeline_model_parallel_size",
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
    "vllm_tensor_parallel_size": "inference_tensor_model_parallel_size, with num_gpus_for_infer",
    "infer_tensor_parallel_size": "inference_tensor_model_parallel_size, with num_gpus_for_infer",
    "rollout_num_gpus": "num_gpus_for_infer",
    "virtual_pipeline_model_parallel_size": "num_layers_per_virtual_pipeline_stage",
    "nnodes": "resource_pool.actor_rollout, a list with one number per node",
    "num_nodes": "resource_pool.actor_rollout, a list with one number per node",
    "actor_num_nodes": "resource_pool.actor_rollout, a list with one number per node",
    "n_gpus_per_node": "resource_pool.actor_rollout",
    "num_gpus_per_node": "resource_pool.actor_rollout",
    "actor_num_gpus_per_node": "resource_pool.actor_rollout",
    "nproc_per_node": "resource_pool.actor_rollout",
    "num_processes": "resource_pool.actor_rollout",
    "num_gpus": "resource_pool.actor_rollout",
    "num_npus": "resource_pool.actor_rollout",
    "actor_resource": "resource_pool.actor_rollout",
    "critic_resource": "resource_pool.critic",
    "data_parallel_size": "resource_pool.actor_rollout (data parallelism is what TP x PP leaves)",
    "nccl_timeout": "training.worker_timeout_s",
    "ddp_timeout": "training.worker_timeout_s",
    "distributed_timeout_minutes": "training.worker_timeout_s (seconds)",
    "rlhf_type": "training.stage",
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "num_key_value_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "rms_norm_eps": "norm_epsilon",
    "rope_theta": "rotary_base",
    "tie_word_embeddings": "untie_embeddings_and_output_weights (the opposite)",
}

_ENGINE = "responses are generated by the built-in engine from the weights that train, so there is no engine to set up"
_NO_ADAPTERS = "all weights are trained, without adapters; merge a trained adapter with convert_ckpt.py --lora-load"
_SHARDING = (
    "models are sharded by tensor_model_parallel_size and pipeline_model_parallel_size, optimizer states by "
    "use_distributed_optimizer"
)
_NO_RECOMPUTE = "activations are not recomputed; max_tokens_per_micro_batch bounds their memory"
_NO_OFFLOAD = "nothing is moved to host memory; use more processes, or bf16: true"
_FASTEST = "the fastest kernel that this machine has is chosen, so there is nothing to set"
_DATA = "data is chosen, formatted and cut by preprocess_data.py; data_path is the prefix that it wrote"
_TOKENS = "which tokens train is decided by preprocess_data.py (--handler-name, --train-on-history)"
_SAMPLING = "sampling has temperature, top_k, top_p, min_new_tokens and eos_token_ids, nothing else"
_NO_TOOLS = "each prompt gets one response, without turns or tools during generation"
_PREFERENCES = "preference optimization is not available; the stages are sft, orm, ray_grpo and ray_ppo"
_NO_RESAMPLING = (
    "prompts are not drawn again; where all responses of a prompt have one reward their advantages are 0, so it does "
    "not train"
)
_LENGTH_REWARD = "there is no penalty for length; write it as a function of your own, named in reward.functions"
_RESUME = "a run resumes when it is started again with the same training.run_dir"
_HUB = "nothing is uploaded; training.export_hf writes a Hugging Face folder"
_SCHEDULE = "the schedule covers the optimizer steps of the run; set lr, min_lr, lr_decay_style and the warm-up"
_EVALUATION = "all of training.eval_data_path is evaluated every training.eval_interval iterations and at the end"
_TRACKERS = "the trackers are jsonl, tensorboard and wandb (training.trackers)"
_LOADER = "the driver reads the data in order, so there are no loader processes to set"
_EXPERTS = "models with experts cannot be trained"

# Patterns with spaces between (as of fnmatch) -> why there is no such key and what there is instead. The first counts.
ABSENT: Mapping[str, str] = {
    "*vllm* *sglang* infer_backend rollout_backend engine_kwargs gpu_memory_utilization enforce_eager "
    "enable_chunked_prefill enable_prefix_caching free_cache_engine cudagraph_capture_sizes load_format "
    "swap_space use_transformers_* cache_implementation ds3_gather_for_generation disable_log_stats "
    "update_weights_bucket* skip_tokenizer_init mode backend sleep_level rollout_num_gpus_per_engine *wake_up "
    "async_engine transformers_continuous_batching_config": _ENGINE,
    "*lora* use_peft peft_* target_modules modules_to_save train_type tuner_* adapters adapter_* use_dora "
    "use_rslora freeze_* trainable_parameters *adapter_name": _NO_ADAPTERS,
    "dtensor_cfg megatron_cfg megatron disable_ds_ckpt *deepspeed* zero_* zero2 zero3 zero_stage *fsdp* strategy "
    "sharding_strategy ddp_* parallelism_config": _SHARDING,
    "gradient_checkpointing* enable_gradient_checkpointing *recompute* activation_checkpointing* "
    "*activation_checkpointing": _NO_RECOMPUTE,
    "*offload*": _NO_OFFLOAD,
    "load_in_4bit load_in_8bit bnb_* quant_* quantization* fp8* *_bnb_*": "weights are trained in bfloat16 or "
    "float32 only (bf16)",
    "attn_* attention_backend flash_attn* use_flash_attention* *liger* *torch_compile* use_fused_* "
    "use_remove_padding padding_free tf32 device_map accelerator_config use_cpu torch_empty_cache_steps "
    "qkv_format": _FASTEST,
    "packing* eval_packing neat_packing sequence_packing": "batches are always packed without padding; several "
    "samples in one row are made by preprocess_data.py --pack",
    "*dataset* data_files prompt_key response_key messages_key input_key label_key *_columns *_column image_* "
    "video_* streaming template template_* chat_template* apply_chat_template* system prompt_type* "
    "prompt_template truncation* filter_overlong* *_max_samples reward_fn_key max_samples cutoff_len return_raw_* "
    "dataset_num_proc use_chat_template input_template prompt_data_probs prompt_split response_prefix "
    "enable_thinking max_pixels *_pixels load_from_cache_file custom_cls length_column_name label_names": _DATA,
    "assistant_only_loss completion_only_loss *loss_scale train_on_*": _TOKENS,
    "rollout_stop repetition_penalty frequency_penalty presence_penalty min_p stop stop_words stop_strings "
    "stop_sequences ignore_eos generation_kwargs sampling_config val_kwargs num_beams logprobs detokenize": _SAMPLING,
    "*rollout_turns *multi_turn* max_turns tools tool_* *_tool_* agent* *interaction*": _NO_TOOLS,
    "dynamic_filter* partial_rollout* dynamic_sampl* filter_groups* max_resample* num_gen_batches "
    "over_sampl*": _NO_RESAMPLING,
    "*overlong_buffer* overlong_* soft_max_length soft_cache_length cosine_* *length_penalty* reward_shaping "
    "mask_truncated_completions overlong_filter*": _LENGTH_REWARD,
    "dpo_* rpo_* simpo_* cpo_* kto_* orpo_* *desirable_weight label_smoothing* loss_weights f_divergence* "
    "f_alpha_divergence* discopop_tau ld_alpha": _PREFERENCES,
    "start_rollout_id consumed_train_samples remove_previous_ckpt* del_local_ckpt* load_best_model_at_end resume* "
    "auto_resume load_checkpoint ignore_data_skip *resume_*": _RESUME,
    "push_to_hub* *hub_*": _HUB,
    "optim optim_* optimizer optimizer_*": "the optimizer is AdamW; set lr, weight_decay, adam_beta1, adam_beta2 "
    "and adam_eps",
    "lr_decay_iters lr_decay_steps lr_decay_samples lr_wsd_* lr_warmup_init num_cycles lr_scheduler_kwargs": _SCHEDULE,
    "val_at_start eval_temperature eval_top_p eval_top_k eval_max_* max_val_samples val_before_train "
    "eval_on_start eval_iters eval_delay val_batch_size val_only do_eval do_train": _EVALUATION,
    "*swanlab* *mlflow* *trackio* *clearml* tensorboard_* logging_dir log_dir": _TRACKERS,
    "dataloader_* average_tokens_across_devices balance_batch balance_data use_dp_batch_balance num_workers_* "
    "preprocessing_num_workers": _LOADER,
    "expert_* moe_* num_experts num_moe_experts router_aux_loss_coef infer_expert_*": _EXPERTS,
    "sequence_parallel_size ulysses_* cp_size": "context parallelism is not available; sequence_parallel: true "
    "shards activations over the TP ranks",
    "trust_remote_code external_lib": "no code from a model's folder is run; the model families are built in",
    "loss_mode policy_loss": "the policy's loss is PPO's clipped one; loss_agg_mode says how its tokens are averaged",
    "checkpoint_must_save_by metric_name metric_for_best_model higher_is_better greater_is_better "
    "save_on_each_node save_only_model save_contents load_contents no_save_* async_save": "a checkpoint always "
    "holds the whole state; training.export_hf writes the final weights alone",
    "exit_*": "a run ends after training.train_iters iterations",
    "model_revision model_init_kwargs override_config": "a model is what its converted checkpoint says",
    "tokenizer_not_use_fast tokenizer_padding_side tokenizer_kwargs eos_token pad_token": "the tokenizer is used "
    "as its own folder describes it",
    "num_layer_list noop_layers": "pipeline stages have equal numbers of layers",
    "vf_coef": "actor and critic are separate models with losses of their own, so nothing weighs them",
    "reward_scaling normalize_reward disable_rewards_normalization reward_clip* clip_reward*": "rewards are "
    "neither clipped nor scaled; do it in a function of your own (reward.functions)",
    "center_rewards_coefficient": "the loss of stage orm has no centering term",
    "importance_sampling_level *importance_sampling* use_tis rollout_correction *on_policy_kl* "
    "use_bias_correction_kl": "the ratio of new to old policy is taken per token",
    "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha": "the reference stays as it was loaded",
    "async_* *_async* partial_rollouts": "each iteration generates with the weights that the one before has trained",
    "enable_ema ema_beta": "no average of the weights is kept",
    "remote_rm_url*": "a reward model runs in the job (reward.load); a function of your own may ask a server "
    "(reward.functions)",
    "aux_loss_coef ptx_coef": "the loss has the policy's term, a KL term and an entropy term, nothing else",
    "log_level* disable_tqdm logging_first_step logging_nan_inf_filter log_entropy log_unique_prompts profiler "
    "nsys_options monitor_gpus": "what is shown and logged has nothing to set but training.log_interval",
    "wandb_key": "the environment variable WANDB_API_KEY says it",
    "device": "the environment variable MINDLLM_DEVICE says it",
    "neftune_noise_alpha": "no noise is added to embeddings",
    "hybrid_engine use_integrated_worker colocate*": "resource_pool says which models share processes, and "
    "num_gpus_for_infer whether generation has its own",
    "infer_pipeline_parallel_size": "processes that only generate have no pipeline stages",
    "reward_manager compute_score reward_fn reward_function launch_reward_fn_async": "rewards are functions named "
    "in reward.functions",
    "overlap_* *torch_dist* use_dist_checkpointing ckpt_format": "checkpoints are always torch_dist, and "
    "communication has nothing to set",
}

# Sections of verl, MindSpeed-RL and NeMo RL -> the section here.
SECTIONS_ELSEWHERE: Mapping[str, str] = {
    "trainer": "training",
    "policy": "actor_rollout_ref.actor_rollout",
    "generation": "actor_rollout_ref.actor_rollout",
    "grpo": "training, algorithm and actor_rollout_ref.actor_rollout",
    "ppo": "training, algorithm and actor_rollout_ref.actor_rollout",
    "loss_fn": "algorithm and actor_rollout_ref.actor_rollout",
    "env": "reward.functions, a list of functions with name and path",
    "rewards": "reward.functions, a list of functions with name and path",
    "cluster": "resource_pool",
    "logger": "training",
    "checkpointing": "training",
    "optimizer": "actor_rollout_ref.actor_rollout",
    "rollout": "actor_rollout_ref.actor_rollout",
    "actor": "actor_rollout_ref.actor_rollout",
    "megatron_training": "training",
    "sft": "training",
    "data": "training and actor_rollout_ref.actor_rollout",
    "rl_config": "actor_rollout_ref.actor_rollout, algorithm, reward and resource_pool",
    "generate_config": "actor_rollout_ref.actor_rollout",
    "actor_config": "actor_rollout_ref.actor_rollout",
    "actor_rollout_ref.actor": "actor_rollout_ref.actor_rollout",
    "actor_rollout_ref.rollout": "actor_rollout_ref.actor_rollout",
    "actor_rollout_ref.model": "actor_rollout_ref.actor_rollout",
    "ref_config": "actor_rollout_ref.ref",
    "critic_config": "critic",
    "reward_config": "reward",
    "reward_model": "reward",
    "custom_reward_function": "reward.functions, a list of functions with name and path",
}
