"""Keys of the actor: what it reads, how reinforcement learning updates it and how it generates."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mindllm.config.base import CommaList, Float, Int, derived
from mindllm.config.paths import DataPrefix
from mindllm.config.roles import TOKENIZER_KEYS, TokenizerKeys, TrainedRoleConfig

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def _zero_is_off(value: object) -> object:
    """Some toolkits write ``top_k: 0`` where others write -1 for the same thing."""
    return -1 if value in (0, "0") and not isinstance(value, bool) else value


class ActorConfig(TrainedRoleConfig, TokenizerKeys):
    """The model that reads the data; stages ``sft`` and ``orm`` only train it, the others let it generate too."""

    data_path: DataPrefix = Field(description="Prefix of the preprocessed data (`weight,prefix` names one too).")
    num_gpus_for_train: Int | None = Field(
        default=None,
        ge=1,
        description="Processes that train; with `num_gpus_for_infer` another way to write "
        "`resource_pool.actor_rollout`.",
        json_schema_extra={"default_text": "`resource_pool.actor_rollout - num_gpus_for_infer`"},
    )

    ppo_epochs: Int = Field(default=1, ge=1, description="Passes over each iteration's responses.")
    ppo_mini_batch_size: Int | None = Field(
        default=None,
        ge=1,
        description="Sequences per optimizer step, over all DP ranks; unset uses the whole iteration's.",
    )
    shuffle_minibatch: bool = Field(
        default=False,
        description="Shuffle an iteration's sequences before they are cut into mini-batches.",
    )
    clip_ratio: Float = Field(default=0.2, gt=0, lt=1, description="PPO clip of the ratio, both sides.")
    clip_ratio_low: Float = derived(
        lambda data: data["clip_ratio"],
        "`clip_ratio`",
        "Lower side: the ratio is clipped at 1 - this.",
        gt=0,
        lt=1,
    )
    clip_ratio_high: Float = derived(
        lambda data: data["clip_ratio"],
        "`clip_ratio`",
        "Upper side: the ratio is clipped at 1 + this.",
        gt=0,
    )
    clip_ratio_c: Float | None = Field(
        default=None,
        gt=1,
        description="Dual clip: where an advantage is negative, loss <= this times -advantage; unset is off.",
    )
    entropy_coeff: Float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    loss_agg_mode: Aggregation = Field(
        default="token-mean",
        description="How the tokens of an optimizer step become one loss: their mean, or the mean over sequences of "
        "their sum, their mean, or their sum over `max_new_tokens`.",
    )
    target_kl: Float | None = Field(
        default=None,
        gt=0,
        description="No further epoch begins once the mean KL(old, new) of an epoch exceeds this; unset: never stops.",
    )

    n_samples_per_prompt: Int = Field(default=1, ge=1, description="Responses per prompt (the group).")
    do_sample: bool = Field(
        default=True,
        description="Sample; false is greedy, with one response.",
        json_schema_extra={"default_text": "`true`; stage `ray_ppo`: `false`"},
    )
    temperature: Float = Field(
        default=1.0,
        gt=0,
        description="Sampling temperature, used in every log-prob too.",
    )
    top_k: Annotated[Int, BeforeValidator(_zero_is_off)] = Field(
        default=-1,
        ge=-1,
        description="Sample from the k likeliest tokens; -1 or 0 is off.",
    )
    top_p: Float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of tokens with this probability; 1 is off.",
    )
    max_prompt_length: Int = Field(default=512, ge=1, description="Longest prompt, in tokens.")
    max_new_tokens: Int = derived(
        lambda data: max(1, data["seq_length"] - data["max_prompt_length"]),
        "`seq_length - max_prompt_length`",
        "Longest response, in tokens.",
        ge=1,
    )
    min_new_tokens: Int = Field(
        default=0,
        ge=0,
        description="Tokens before the first end token may be sampled.",
    )
    eos_token_ids: Annotated[list[Int], CommaList] | None = Field(
        default=None,
        description="Token ids that end a response; unset takes those of the data's template, generation_config.json, "
        "config.json and tokenizer.",
    )
    num_samples_per_step: Int | None = Field(
        default=None,
        ge=1,
        description="Sequences generated at the same time per DP rank; unset: 256, or what `max_kv_tokens` holds.",
    )
    max_kv_tokens: Int | None = Field(
        default=None,
        ge=1,
        description="Tokens in the key-value cache of one DP rank; unset: no bound but `num_samples_per_step`.",
    )
    num_gpus_for_infer: Int = Field(
        default=0,
        ge=0,
        description="Processes of their own that generate, out of `resource_pool.actor_rollout`; "
        "0 generates on those that train.",
    )
    inference_tensor_model_parallel_size: Int = derived(
        lambda data: data["tensor_model_parallel_size"],
        "`tensor_model_parallel_size`",
        "TP of the processes that only generate.",
        ge=1,
    )


SUPERVISED_ACTOR_KEYS = frozenset(TrainedRoleConfig.model_fields) | TOKENIZER_KEYS | {"data_path", "num_gpus_for_train"}
RL_ONLY_ACTOR_KEYS = frozenset(ActorConfig.model_fields) - SUPERVISED_ACTOR_KEYS
ACTOR_KEYS = frozenset(ActorConfig.model_fields) - {"model_keys"}
