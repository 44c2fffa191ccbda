"""Keys of the actor: how GRPO updates it and how it generates. Stage ``sft`` reads none that is defined here."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from mindllm.config.base import CommaList, Float, Int, derived
from mindllm.config.roles import RoleConfig, TrainedRoleConfig


def _zero_is_off(value: object) -> object:
    """Some toolkits write ``top_k: 0`` where others write -1 for the same thing."""
    return -1 if value in (0, "0") and not isinstance(value, bool) else value


class ActorConfig(TrainedRoleConfig):
    """The model that trains and, under GRPO, generates."""

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

    n_samples_per_prompt: Int = Field(default=1, ge=1, description="Responses per prompt (the group).")
    do_sample: bool = Field(default=True, description="Sample; false is greedy, with one response.")
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
        description="Token ids that end a response; unset takes those of generation_config and tokenizer.",
    )
    num_samples_per_step: Int | None = Field(
        default=None,
        ge=1,
        description="Sequences generated at the same time per DP rank; unset chooses by memory.",
    )
    max_kv_tokens: Int | None = Field(
        default=None,
        ge=1,
        description="Tokens in the key-value cache of one DP rank; unset chooses by memory.",
    )


GRPO_ONLY_ACTOR_KEYS = frozenset(ActorConfig.model_fields) - frozenset(TrainedRoleConfig.model_fields)
ROLE_KEYS = frozenset(RoleConfig.model_fields) - {"model_keys"}
ACTOR_KEYS = frozenset(ActorConfig.model_fields) - {"model_keys"}
