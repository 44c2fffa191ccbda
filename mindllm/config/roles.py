"""Keys of a role (actor, reference, critic, reward model): where its weights are, its layout, how it trains.

Each may sit in the role's own section, in ``training`` (for every role) or in the role's model file,
in this order of precedence.
"""

from typing import Any, Literal

from pydantic import Field

from mindllm.config.base import Float, Int, Section
from mindllm.config.paths import LocalPath


class RoleConfig(Section):
    """Keys of every role."""

    load: LocalPath = Field(description="Megatron-core checkpoint directory to start from (weights only).")
    model: str | None = Field(
        default=None,
        description="Name of a file in `configs/rlxf/model/`, listed under `defaults`; "
        "its architecture keys are checked against the checkpoint.",
    )
    model_keys: dict[str, Any] = Field(
        default={}, description="Collected from the model file and the architecture keys of this role; not written."
    )
    tensor_model_parallel_size: Int = Field(
        default=1,
        ge=1,
        description="TP: ranks that share each layer. It divides the heads, and the key-value heads or is a multiple.",
    )
    pipeline_model_parallel_size: Int = Field(default=1, ge=1, description="PP: ranks that share the stack of layers.")
    num_layers_per_virtual_pipeline_stage: Int | None = Field(
        default=None, ge=1, description="VPP: layers per interleaved chunk; needs PP > 1. Unset: not interleaved."
    )
    sequence_parallel: bool = Field(
        default=False, description="Shard activations between tensor-parallel regions; of use with TP > 1."
    )
    bf16: bool = Field(default=False, description="Compute in bfloat16 with fp32 master weights; false is fp32.")
    seq_length: Int = Field(ge=2, description="Longest prompt plus response, in tokens.")
    micro_batch_size: Int | None = Field(
        default=None, ge=1, description="Upper bound of sequences per micro-batch; unset leaves only the token bound."
    )
    max_tokens_per_micro_batch: Int = Field(
        default=4096,
        ge=1,
        description="Upper bound of tokens per micro-batch; a longer sequence gets one of its own.",
    )
    make_vocab_size_divisible_by: Int = Field(
        default=1, ge=1, description="The vocabulary is padded to a multiple of this times TP."
    )


class TokenizerKeys(Section):
    """Keys of a role that reads text: the actor and the reward model."""

    tokenizer_type: Literal["PretrainedFromHF"] = Field(default="PretrainedFromHF", description="Kind of tokenizer.")
    tokenizer_name_or_path: LocalPath | None = Field(
        default=None,
        description="Hugging Face tokenizer directory; unset: the `hf/` folder of `load`.",
    )


class RefConfig(RoleConfig):
    """The frozen reference model of a KL term."""


class RewardModelConfig(RoleConfig, TokenizerKeys):
    """The frozen reward model; its keys stand in section ``reward`` beside those of the rule rewards."""

    weight: Float = Field(
        default=1.0, description="Factor of the reward model's score in the sum with the rule rewards."
    )


class TrainedRoleConfig(RoleConfig):
    """A model that trains."""

    save: LocalPath = Field(
        default="runs/default/checkpoints",
        description="Directory of this role's checkpoints.",
        json_schema_extra={"default_text": "`<run_dir>/checkpoints/actor` or `critic`"},
    )
    lr: Float = Field(gt=0, description="Peak learning rate.")
    min_lr: Float = Field(default=0.0, ge=0, description="Learning rate at the end of a decay.")
    lr_decay_style: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Shape of the learning rate over the optimizer steps of the run."
    )
    lr_warmup_fraction: Float = Field(default=0.0, ge=0, lt=1, description="Share of the optimizer steps that warm up.")
    lr_warmup_iters: Int = Field(
        default=0, ge=0, description="Optimizer steps that warm up (instead of a share); the first has learning rate 0."
    )
    weight_decay: Float = Field(default=0.01, ge=0, description="AdamW weight decay.")
    clip_grad: Float = Field(default=1.0, ge=0, description="Largest gradient norm; 0 does not clip.")
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1, description="Adam: decay of the first moment.")
    adam_beta2: Float = Field(default=0.95, ge=0, lt=1, description="Adam: decay of the second moment.")
    adam_eps: Float = Field(default=1e-8, gt=0, description="Adam: term added to the denominator.")
    use_distributed_optimizer: bool = Field(default=True, description="Shard the optimizer state over DP ranks.")


class CriticConfig(TrainedRoleConfig):
    """The model that estimates values, in stage ``ray_ppo``."""

    cliprange_value: Float = Field(
        default=3.0,
        gt=0,
        description="Clip of a value around the one the advantages were computed from; 0.2 is the usual choice.",
    )
    critic_mini_batch_size: Int | None = Field(
        default=None,
        ge=1,
        description="Sequences per optimizer step of the critic, over all DP ranks; unset uses the whole iteration's.",
    )
    critic_update_epochs: Int = Field(default=1, ge=1, description="The critic's passes over each iteration.")
    critic_warmup_iters: Int = Field(default=0, ge=0, description="First iterations in which only the critic trains.")


ROLE_KEYS = frozenset(RoleConfig.model_fields) - {"model_keys"}
TOKENIZER_KEYS = frozenset(TokenizerKeys.model_fields)
REWARD_MODEL_KEYS = frozenset(RewardModelConfig.model_fields) - {"model_keys"}
CRITIC_KEYS = frozenset(CriticConfig.model_fields) - {"model_keys"}
CRITIC_ONLY_KEYS = CRITIC_KEYS - frozenset(TrainedRoleConfig.model_fields)
