"""Keys of a role (actor, reference): where its weights are, how it is laid out, how it trains and generates.

Each may sit in the role's own section, in ``training`` (for every role) or in the role's model file,
in this order of precedence.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import Float, Int, Section


def _one_prefix(value: object) -> object:
    """Read ``weight,prefix`` as the prefix that it names; refuse a blend of several."""
    parts = [str(part).strip() for part in (value if isinstance(value, list) else str(value).split(","))]
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2 and _is_number(parts[0]):
        return parts[1]
    raise ValueError(
        f"{value!r} is not one prefix; a blend is not available, so give all the files to one preprocess_data.py run"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class RoleConfig(Section):
    """Keys of every role."""

    load: str = Field(min_length=1, description="Megatron-core checkpoint directory to start from (weights only).")
    model: str | None = Field(
        default=None,
        description="Name of a file in `configs/rlxf/model/`, listed under `defaults`; "
        "its architecture keys are checked against the checkpoint.",
    )
    model_keys: dict[str, Any] = Field(
        default={}, description="Collected from the model file and the architecture keys of this role; not written."
    )
    tokenizer_type: Literal["PretrainedFromHF"] = Field(default="PretrainedFromHF", description="Kind of tokenizer.")
    tokenizer_name_or_path: str | None = Field(
        default=None,
        min_length=1,
        description="Hugging Face tokenizer directory; unset: the `hf/` folder of `load`.",
    )
    tensor_model_parallel_size: Int = Field(default=1, ge=1, description="TP: ranks that share each layer.")
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


class RefConfig(RoleConfig):
    """The frozen reference model of a KL term."""


class TrainedRoleConfig(RoleConfig):
    """A model that reads data and trains."""

    data_path: Annotated[str, BeforeValidator(_one_prefix)] = Field(
        min_length=1, description="Prefix of the preprocessed data (`weight,prefix` names one too)."
    )
    save: str = Field(
        default="runs/default/checkpoints/actor",
        min_length=1,
        description="Directory of this role's checkpoints.",
        json_schema_extra={"default_text": "`<run_dir>/checkpoints/actor`"},
    )
    num_gpus_for_train: Int | None = Field(
        default=None, ge=1, description="Processes of the actor; another way to write `resource_pool.actor_rollout`."
    )
    lr: Float = Field(gt=0, description="Peak learning rate.")
    min_lr: Float = Field(default=0.0, ge=0, description="Learning rate at the end of a decay.")
    lr_decay_style: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Shape of the learning rate over the optimizer steps of the run."
    )
    lr_warmup_fraction: Float = Field(default=0.0, ge=0, lt=1, description="Share of the optimizer steps that warm up.")
    lr_warmup_iters: Int = Field(default=0, ge=0, description="Optimizer steps that warm up (instead of a share).")
    weight_decay: Float = Field(default=0.01, ge=0, description="AdamW weight decay.")
    clip_grad: Float = Field(default=1.0, ge=0, description="Largest gradient norm; 0 does not clip.")
    adam_beta1: Float = Field(default=0.9, ge=0, lt=1, description="Adam: decay of the first moment.")
    adam_beta2: Float = Field(default=0.95, ge=0, lt=1, description="Adam: decay of the second moment.")
    adam_eps: Float = Field(default=1e-8, gt=0, description="Adam: term added to the denominator.")
    use_distributed_optimizer: bool = Field(default=True, description="Shard the optimizer state over DP ranks.")
