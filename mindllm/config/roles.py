"""Keys of a role (actor, reference): where its weights are, how it is laid out, how it trains and generates.

Each may sit in the role's own section, in ``training`` (for every role) or in the role's model file,
in this order of precedence.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import IN_GRPO_ONLY, CommaList, Float, Int, Section, derived

DEFAULT_MAX_TOKENS = 4096


def _zero_is_off(value: object) -> object:
    """Some toolkits write ``top_k: 0`` where others write -1 for the same thing."""
    return -1 if value in (0, "0") and not isinstance(value, bool) else value


def _blend_string(value: object) -> object:
    return ",".join(str(item) for item in value) if isinstance(value, list) else value


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
        default=None, description="Hugging Face tokenizer directory; unset reads the `hf/` folder of `load`."
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
    max_tokens_per_micro_batch: Int = derived(
        lambda data: max(DEFAULT_MAX_TOKENS, data["seq_length"]),
        "4096, or `seq_length` if longer",
        "Upper bound of tokens per micro-batch.",
        ge=2,
    )
    make_vocab_size_divisible_by: Int = Field(
        default=1, ge=1, description="The vocabulary is padded to a multiple of this (per TP rank)."
    )


class RefConfig(RoleConfig):
    """The frozen reference model of a KL term."""


class ActorConfig(RoleConfig):
    """The model that trains and, under GRPO, generates."""

    data_path: Annotated[str, BeforeValidator(_blend_string)] = Field(
        min_length=1, description="Prefix of the indexed data, or `weight,prefix,weight,prefix,...` for a blend."
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

    ppo_epochs: Int = Field(
        default=1, ge=1, description="Passes over each iteration's responses.", json_schema_extra=dict(IN_GRPO_ONLY)
    )
    ppo_mini_batch_size: Int | None = Field(
        default=None,
        ge=1,
        description="Sequences per optimizer step, over all DP ranks; unset uses the whole iteration's.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    shuffle_minibatch: bool = Field(
        default=False,
        description="Shuffle an iteration's sequences before they are cut into mini-batches.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    clip_ratio: Float = Field(
        default=0.2, gt=0, lt=1, description="PPO clip of the ratio, both sides.", json_schema_extra=dict(IN_GRPO_ONLY)
    )
    clip_ratio_low: Float = derived(
        lambda data: data["clip_ratio"],
        "`clip_ratio`",
        "Lower side: the ratio is clipped at 1 - this.",
        gt=0,
        lt=1,
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    clip_ratio_high: Float = derived(
        lambda data: data["clip_ratio"],
        "`clip_ratio`",
        "Upper side: the ratio is clipped at 1 + this.",
        gt=0,
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    clip_ratio_c: Float | None = Field(
        default=None,
        gt=1,
        description="Dual clip: bound of the loss, in units of -advantage, where the advantage is negative; unset: off.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    entropy_coeff: Float = Field(
        default=0.0, ge=0, description="Weight of the entropy bonus.", json_schema_extra=dict(IN_GRPO_ONLY)
    )

    n_samples_per_prompt: Int = Field(
        default=1, ge=1, description="Responses per prompt (the group).", json_schema_extra=dict(IN_GRPO_ONLY)
    )
    do_sample: bool = Field(
        default=True, description="Sample; false is greedy, with one response.", json_schema_extra=dict(IN_GRPO_ONLY)
    )
    temperature: Float = Field(
        default=1.0,
        gt=0,
        description="Sampling temperature, used in every log-prob too.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    top_k: Annotated[Int, BeforeValidator(_zero_is_off)] = Field(
        default=-1,
        ge=-1,
        description="Sample from the k likeliest tokens; -1 or 0 is off.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    top_p: Float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of tokens with this probability; 1 is off.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    max_prompt_length: Int = Field(
        default=512, ge=1, description="Longest prompt, in tokens.", json_schema_extra=dict(IN_GRPO_ONLY)
    )
    max_new_tokens: Int = derived(
        lambda data: max(1, data["seq_length"] - data["max_prompt_length"]),
        "`seq_length - max_prompt_length`",
        "Longest response, in tokens.",
        ge=1,
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    min_new_tokens: Int = Field(
        default=0,
        ge=0,
        description="Tokens before the first end token may be sampled.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    eos_token_ids: Annotated[list[Int], CommaList] | None = Field(
        default=None,
        description="Token ids that end a response; unset takes those of generation_config and tokenizer.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    num_samples_per_step: Int | None = Field(
        default=None,
        ge=1,
        description="Sequences generated at the same time per DP rank; unset chooses by memory.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )
    max_kv_tokens: Int | None = Field(
        default=None,
        ge=1,
        description="Tokens in the key-value cache of one DP rank; unset chooses by memory.",
        json_schema_extra=dict(IN_GRPO_ONLY),
    )

    @property
    def data_blend(self) -> list[tuple[float, str]]:
        """``data_path`` as (weight, prefix) pairs; a bare prefix has weight 1. Raises ValueError on a bad blend."""
        parts = [part.strip() for part in self.data_path.split(",") if part.strip()]
        if len(parts) == 1:
            return [(1.0, parts[0])]
        if len(parts) % 2:
            raise ValueError("a blend is weight,prefix,weight,prefix,...")
        return [(float(weight), prefix) for weight, prefix in zip(parts[::2], parts[1::2], strict=True)]
