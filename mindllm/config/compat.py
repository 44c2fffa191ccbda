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
    "is_instruction_dataset": "the manifest beside the data says what it holds",
    "variable_seq_lengths": PACKED,
    "pad_to_multiple_of": PACKED,
    "dataset_additional_keys": "every extra column beside the data is kept and passed to the rewards",
    "dataset_category": "every row is scored by all functions of the reward section, whichever data set it is from",
    "inference_tensor_model_parallel_size": "responses are generated in the layout that trains",
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

_NO_GAE = "only generalised advantage estimation reads it, not the group estimators"
ACCEPTED_ALGORITHM: Mapping[str, str] = {
    "gamma": _NO_GAE,
    "lam": _NO_GAE,
    "dpo_beta": "only preference optimisation reads it",
    "dpo_loss_type": "only preference optimisation reads it",
}
ACCEPTED_KL_CTRL: Mapping[str, str] = {
    "target_kl": "only an adaptive coefficient reads it",
    "horizon": "only an adaptive coefficient reads it",
}


@dataclass(frozen=True)
class OneValue:
    """A key whose only supported value needs no setting; any other is refused."""

    value: Any
    meaning: str
    otherwise: str


ONE_VALUE: Mapping[str, OneValue] = {
    "use_kv_cache": OneValue(True, "generation always uses a key-value cache", "write true or leave it out"),
    "num_gpus_for_infer": OneValue(
        0,
        "the actor's processes generate too",
        "separate processes for generation are not available; write 0 and give the actor all processes "
        "with resource_pool.actor_rollout",
    ),
    "split": OneValue(
        "100,0,0",
        "all of data_path trains",
        "held-out data has its own files; write 100,0,0 and name them with training.eval_data_path",
    ),
    "context_parallel_size": OneValue(1, "context parallelism is off", "context parallelism is not available; write 1"),
    "expert_model_parallel_size": OneValue(1, "there are no experts", "expert models are not available; write 1"),
    "fp16": OneValue(False, "bf16 decides", "fp16 is not available; write bf16: true"),
}
ONE_VALUE_ALGORITHM: Mapping[str, OneValue] = {
    "missing_eos_penalty": OneValue(0.0, "no penalty is applied", "the penalty is not available; write 0.0"),
    "advantage_whiten": OneValue(
        False, "the group estimators normalise per group", "whitening is not available; write false"
    ),
}

_CRITIC = "belongs to stage ray_ppo, which is not available; the stages are sft and ray_grpo"
REFUSED: Mapping[str, str] = {
    "cliprange_value": _CRITIC,
    "critic_mini_batch_size": _CRITIC,
    "critic_update_epochs": _CRITIC,
    "whiten_scope": _CRITIC,
}
REFUSED_VALUES: Mapping[tuple[str, str], str] = {
    ("stage", "ray_ppo"): "ppo needs a critic, which is not available; write ray_grpo",
    ("stage", "ppo"): "ppo needs a critic, which is not available; write ray_grpo",
    ("stage", "ray_online_dpo"): "online preference optimisation is not available; write ray_grpo",
    ("adv_estimator", "gae"): "gae needs a critic, which is not available; write group_norm",
    ("adv_estimator", "grpo"): "the estimator of GRPO is called group_norm here",
    ("type", "adaptive"): "an adaptive coefficient is not available; write fixed",
}
REWARD_MODEL_KEYS = frozenset(
    {
        "model",
        "load",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "micro_batch_size",
        "sequence_parallel",
        "bf16",
    }
)


def same_value(found: object, wanted: object) -> bool:
    """Whether a value from YAML means ``wanted``, however it was written (``True``/``"true"``, ``0``/``"0.0"``)."""
    if isinstance(wanted, bool) or isinstance(wanted, str) or isinstance(found, bool):
        written = ",".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
        return written.replace(" ", "").lower() == str(wanted).lower()
    try:
        return float(str(found)) == float(str(wanted))
    except ValueError:
        return False
