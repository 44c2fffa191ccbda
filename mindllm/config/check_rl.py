"""Checks of the stages that generate: responses, rewards, KL terms."""

from collections.abc import Iterator

from mindllm.config.check_names import HOMES, Names
from mindllm.config.schema import RunConfig


def check_rl(config: RunConfig, name: Names) -> Iterator[str]:
    """Yield a sentence for every contradiction in what is generated, rewarded and compared."""
    yield from _samples(config, name)
    yield from _lengths(config, name)
    yield from _kl(config)
    yield from _rewards(config)
    for role, keys in config.roles().items():
        if keys.seq_length < config.actor.seq_length:
            yield (
                f"{HOMES[role]}.seq_length ({keys.seq_length}) must be at least the actor's ({config.actor.seq_length})"
            )


def _samples(config: RunConfig, name: Names) -> Iterator[str]:
    actor, samples = config.actor, config.actor.n_samples_per_prompt
    if config.training.stage == "ray_ppo":
        if samples > 1 and not actor.do_sample:
            yield (
                f"{name('n_samples_per_prompt')} is {samples} but {name('do_sample')} is false: greedy responses to "
                "one prompt are all alike; write do_sample: true, or one response"
            )
        return
    if not actor.do_sample:
        yield (
            f"{name('do_sample')} is false: greedy responses to one prompt are all alike and teach nothing; "
            "write true for stage ray_grpo"
        )
    if samples < 2:
        yield (
            f"{name('n_samples_per_prompt')} is {samples}: {config.algorithm.adv_estimator} compares the responses to "
            "one prompt, so write at least 2"
        )


def _lengths(config: RunConfig, name: Names) -> Iterator[str]:
    actor = config.actor
    if actor.max_prompt_length >= actor.seq_length:
        yield (
            f"{name('max_prompt_length')} ({actor.max_prompt_length}) must be less than "
            f"seq_length ({actor.seq_length}), which holds prompt and response"
        )
    elif actor.max_prompt_length + actor.max_new_tokens > actor.seq_length:
        yield (
            f"max_prompt_length ({actor.max_prompt_length}) + {name('max_new_tokens')} ({actor.max_new_tokens}) "
            f"must not exceed seq_length ({actor.seq_length})"
        )
    if actor.min_new_tokens > actor.max_new_tokens:
        yield (
            f"{name('min_new_tokens')} ({actor.min_new_tokens}) must not exceed max_new_tokens ({actor.max_new_tokens})"
        )
    if actor.max_kv_tokens is not None and actor.max_kv_tokens < actor.seq_length:
        yield (
            f"{name('max_kv_tokens')} ({actor.max_kv_tokens}) must be at least seq_length ({actor.seq_length}): "
            "the cache must hold one sequence"
        )


def _kl(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    coefficient = algorithm.kl_ctrl.kl_coef
    if algorithm.use_kl_loss and algorithm.kl_loss_coef == 0:
        yield "algorithm.use_kl_loss is true but algorithm.kl_loss_coef is 0; write one greater than 0"
    if not algorithm.use_kl_loss and algorithm.kl_loss_coef > 0:
        yield "algorithm.kl_loss_coef has no effect without algorithm.use_kl_loss: true"
    if algorithm.use_kl_in_reward and coefficient == 0:
        yield "algorithm.use_kl_in_reward is true but algorithm.kl_ctrl.kl_coef is 0; write one greater than 0"
    if not algorithm.use_kl_in_reward and coefficient > 0:
        yield "algorithm.kl_ctrl.kl_coef has no effect without algorithm.use_kl_in_reward: true"
    if not algorithm.use_kl_in_reward and algorithm.kl_ctrl.type == "adaptive":
        yield "algorithm.kl_ctrl.type: adaptive has no effect without algorithm.use_kl_in_reward: true"


def _rewards(config: RunConfig) -> Iterator[str]:
    functions, model = config.reward.functions, config.reward_model
    names = [function.name for function in functions]
    weights = [function.weight for function in functions] + ([model.weight] if model is not None else [])
    if not weights:
        yield (
            "reward.functions is missing: name at least one reward, e.g. accuracy or format; or a reward model with "
            "reward.load"
        )
    elif all(weight == 0 for weight in weights):
        yield "reward.functions: every weight is 0, so there is nothing to learn from"
    for twice in sorted({name for name in names if names.count(name) > 1}):
        yield f"reward.functions names '{twice}' twice; keep one, with the weight that you mean"
