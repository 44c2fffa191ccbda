"""Keys of other files that are understood here without being settings of ours.

Three kinds: accepted and named once in the log with what happens instead; accepted with one value only; refused
with the reason and what to write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WEIGHTS_ONLY = "`load` gives weights only; a run that stopped resumes with its whole state from its own run_dir"
BY_DEVICE = "the device room picks the fastest kernel that this machine has"
PACKED = "sequences are packed without padding, so there is nothing to set"
FROM_CHECKPOINT = "weights come from a checkpoint, so nothing is initialised"

# In `training`, in a role's section or in a model file.
ACCEPTED: Mapping[str, str] = {
    "distributed_backend": "the device decides how its processes talk to each other",
    "no_shared_storage": "no index cache is written; data and checkpoints must be readable by every node",
    "no_load_optim": WEIGHTS_ONLY,
    "no_load_rng": WEIGHTS_ONLY,
    "finetune": WEIGHTS_ONLY,
    "no_save_optim": "every checkpoint holds the whole state, so that a run can resume",
    "no_save_rng": "every checkpoint holds the whole state, so that a run can resume",
    "log_throughput": "tokens per second are always logged",
    "full_shuffle_instruction_dataset": "no_shuffle decides; every epoch has an order of its own",
    "overlap_grad_reduce": "gradients and parameters are exchanged between steps, without overlap",
    "overlap_param_gather": "gradients and parameters are exchanged between steps, without overlap",
    "is_instruction_dataset": "the manifest beside the data says what it holds",
    "variable_seq_lengths": PACKED,
    "pad_to_multiple_of": PACKED,
    "dataset_additional_keys": "every extra column beside the data is kept and passed to the rewards",
    "dataset_category": "every row is scored by all functions of the reward section, whichever data set it is from",
    "initial_loss_scale": "bf16 and fp32 need no loss scale",
    "max_tokens_to_oom": "max_kv_tokens bounds the key-value cache",
    "use_flash_attn": BY_DEVICE,
    "use_fused_rmsnorm": BY_DEVICE,
    "use_fused_swiglu": BY_DEVICE,
    "use_fused_rotary_pos_emb": BY_DEVICE,
    "use_mc2": BY_DEVICE,
    "no_masked_softmax_fusion": BY_DEVICE,
    "no_gradient_accumulation_fusion": BY_DEVICE,
    "attention_softmax_in_fp32": "softmax is computed in fp32 or by the attention kernel",
    "init_method_std": FROM_CHECKPOINT,
    "use_mcore_models": "models are always megatron-core's",
}

_ACTORS_TOKENS = "it reads the actor's tokens"
# In `actor_rollout_ref.ref`, and in `critic`.
ACCEPTED_TOKENIZER: Mapping[str, str] = {"tokenizer_type": _ACTORS_TOKENS, "tokenizer_name_or_path": _ACTORS_TOKENS}
# In `critic`, which other toolkits fill like the actor's section.
ACCEPTED_CRITIC: Mapping[str, str] = {
    "data_path": "the critic trains on the actor's responses",
    "shuffle_minibatch": "the actor's key counts for both",
}

ACCEPTED_ALGORITHM: Mapping[str, str] = {
    "dpo_beta": "only preference optimization reads it",
    "dpo_loss_type": "only preference optimization reads it",
}
_NO_GAE = "only generalised advantage estimation reads it, not the group estimators"
# In `algorithm`, in stage ray_grpo.
ACCEPTED_ALGORITHM_GRPO: Mapping[str, str] = {
    "gamma": _NO_GAE,
    "lam": _NO_GAE,
    "whiten_scope": "the group estimators normalise per group",
}


@dataclass(frozen=True)
class OneValue:
    """A key whose only supported value needs no setting; any other is refused."""

    value: Any
    meaning: str
    otherwise: str


ONE_VALUE: Mapping[str, OneValue] = {
    "use_kv_cache": OneValue(True, "generation always uses a key-value cache", "write true or leave it out"),
    "split": OneValue(
        "100,0,0",
        "all of data_path trains",
        "held-out data has its own files; write 100,0,0 and name them with training.eval_data_path",
    ),
    "context_parallel_size": OneValue(1, "context parallelism is off", "context parallelism is not available; write 1"),
    "expert_model_parallel_size": OneValue(1, "there are no experts", "expert models are not available; write 1"),
    "fp16": OneValue(False, "bf16 decides", "fp16 is not available; write bf16: true"),
}
_ONLY_PPO = "stage ray_grpo has no such thing; write {}, or stage: ray_ppo"
ONE_VALUE_ALGORITHM_GRPO: Mapping[str, OneValue] = {
    "missing_eos_penalty": OneValue(0.0, "no penalty is applied", _ONLY_PPO.format("0.0")),
    "advantage_whiten": OneValue(False, "the group estimators normalise per group", _ONLY_PPO.format("false")),
    "whiten_rewards": OneValue(False, "rewards are compared as they are", _ONLY_PPO.format("false")),
    "bootstrap_truncated": OneValue(False, "there are no values", _ONLY_PPO.format("false")),
}

_NO_PREFERENCES = "preference optimization is not available; the stages are sft, orm, ray_grpo and ray_ppo"
_DAPO = (
    "write ray_grpo with loss_agg_mode: token-mean and clip_ratio_high > clip_ratio_low; prompts are not drawn again"
)

REFUSED_VALUES: Mapping[tuple[str, str], str] = {
    ("stage", "ray_online_dpo"): "online preference optimization is not available; write ray_ppo or ray_grpo",
    **{("stage", name): _NO_PREFERENCES for name in ("dpo", "kto", "orpo", "simpo", "cpo", "ipo")},
    **{("stage", name): _DAPO for name in ("dapo", "ray_dapo")},
    **{("stage", name): "a reward model is trained by stage orm" for name in ("rm", "reward", "reward_model")},
    ("stage", "pt"): "pretraining is not available; write sft",
    ("adv_estimator", "rloo"): "leaving one out is not available; group_mean subtracts the mean of the whole group",
    ("adv_estimator", "grpo"): "the estimator of GRPO is called group_norm here",
}


def same_value(found: object, wanted: object) -> bool:
    """Whether a value from YAML means ``wanted``, however it was written (``True``/``"true"``, ``0``/``"0.0"``)."""
    if isinstance(wanted, bool) or isinstance(wanted, str) or isinstance(found, bool):
        written = ",".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
        return written.replace(" ", "").lower() == str(wanted).lower()
    try:
        return float(str(found)) == float(str(wanted))
    except ValueError:
        return False
