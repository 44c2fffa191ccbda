"""Checks that need several keys at once. Each is one sentence that names the key as it was written."""

from collections.abc import Iterator, Mapping

from mindllm.config.check_layouts import check_layouts
from mindllm.config.check_names import WHO, Names
from mindllm.config.check_rl import check_rl
from mindllm.config.layers import Findings
from mindllm.config.pool import PoolRole
from mindllm.config.roles import TrainedRoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.training import SUPERVISED_STAGES


def check_run(config: RunConfig, sources: Mapping[PoolRole, Mapping[str, str]], findings: Findings) -> None:
    """Note in ``findings`` every contradiction between keys of ``config``.

    ``sources`` maps the keys of each role to the dotted names they were written under.
    """
    name = Names(sources)
    findings.errors.extend(_evaluation(config, name))
    findings.errors.extend(_schedules(config, name))
    findings.errors.extend(_directories(config, name))
    findings.errors.extend(check_layouts(config, name))
    if config.training.stage not in SUPERVISED_STAGES:
        findings.errors.extend(check_rl(config, name))
    findings.errors.extend(_batches(config, name))
    _note_unread(config, name, findings)


def _evaluation(config: RunConfig, name: Names) -> Iterator[str]:
    training = config.training
    if training.eval_interval is not None and training.eval_data_path is None:
        yield f"training.eval_interval is {training.eval_interval} but training.eval_data_path is missing"
    if training.eval_interval is None and training.eval_data_path is not None:
        yield "training.eval_data_path is never read; write training.eval_interval too"
    if training.eval_interval is None and training.eval_n_samples_per_prompt > 1:
        yield "training.eval_n_samples_per_prompt is never read; write training.eval_interval too"
    if training.eval_n_samples_per_prompt > 1 and not config.actor.do_sample:
        yield f"{name('do_sample')} is false, so training.eval_n_samples_per_prompt must be 1"


def _trained(config: RunConfig) -> dict[PoolRole, TrainedRoleConfig]:
    return {role: keys for role, keys in config.roles().items() if isinstance(keys, TrainedRoleConfig)}


def _schedules(config: RunConfig, name: Names) -> Iterator[str]:
    for role, keys in _trained(config).items():
        if keys.lr_warmup_fraction > 0 and keys.lr_warmup_iters > 0:
            yield f"{name('lr_warmup_fraction', role)} and {name('lr_warmup_iters', role)} say the same thing; keep one"
        if keys.min_lr > keys.lr:
            yield f"{name('min_lr', role)} ({keys.min_lr}) must not be greater than lr ({keys.lr})"
        steps = _steps(config, role)
        if keys.lr_warmup_iters >= steps and keys.lr_warmup_iters > 0:
            yield (
                f"{name('lr_warmup_iters', role)} ({keys.lr_warmup_iters}) must be less than the run's {steps} "
                "optimizer steps"
            )
    warmup, iterations = config.critic.critic_warmup_iters if config.critic else 0, config.training.train_iters
    if warmup >= iterations:
        yield (
            f"{name('critic_warmup_iters', 'critic')} ({warmup}) must be less than training.train_iters "
            f"({iterations}), or the actor never trains"
        )


def _directories(config: RunConfig, name: Names) -> Iterator[str]:
    trained = _trained(config)
    loads = {keys.load for keys in config.roles().values()}
    for role, keys in trained.items():
        if keys.save in loads:
            yield f"{name('save', role)} is the directory that load reads ({keys.save}); write another"
    if len({keys.save for keys in trained.values()}) < len(trained):
        shared = " and ".join(WHO[role] for role in trained)
        yield f"{name('save', 'critic')} is {config.actor.save} for {shared}; each role needs a directory of its own"


def _sequences_per_iteration(config: RunConfig) -> int:
    return config.training.global_batch_size * config.actor.n_samples_per_prompt


def _mini_batch(config: RunConfig, role: PoolRole) -> tuple[str, int | None, int]:
    """Key and value of a role's sequences per optimizer step, and its passes over an iteration."""
    if role == "critic" and config.critic is not None:
        return "critic_mini_batch_size", config.critic.critic_mini_batch_size, config.critic.critic_update_epochs
    return "ppo_mini_batch_size", config.actor.ppo_mini_batch_size, config.actor.ppo_epochs


def _steps(config: RunConfig, role: PoolRole) -> int:
    _, mini, epochs = _mini_batch(config, role)
    total = _sequences_per_iteration(config)
    return config.training.train_iters * epochs * max(1, total // (mini or total))


def _batches(config: RunConfig, name: Names) -> Iterator[str]:
    total = _sequences_per_iteration(config)
    product = f"training.global_batch_size x n_samples_per_prompt ({total})"
    what = "training.global_batch_size" if config.training.stage in SUPERVISED_STAGES else product
    for role in _trained(config):
        key, mini, _ = _mini_batch(config, role)
        if mini is not None and mini > total:
            yield f"{name(key, role)} ({mini}) must not exceed {product}"
            continue
        if mini is not None and total % mini:
            yield f"{name(key, role)} ({mini}) must divide {product}"
        ranks = _replicas(config, role)
        if total < ranks:
            of_whom = "" if role == "actor_rollout" else f" of {WHO[role]}"
            yield f"{what} is {total}, less than the {ranks} data-parallel ranks{of_whom}, so some would idle"


def _replicas(config: RunConfig, role: PoolRole) -> int:
    return config.data_parallel_size("actor" if role == "actor_rollout" else role)


def _note_unread(config: RunConfig, name: Names, findings: Findings) -> None:
    for role, keys in _trained(config).items():
        if keys.lr_decay_style == "constant" and keys.min_lr > 0:
            findings.ignored[name("min_lr", role)] = "lr_decay_style is constant, so the learning rate stays at lr"
        key, mini, _ = _mini_batch(config, role)
        ranks = _replicas(config, role)
        if mini is not None and mini < ranks:
            findings.ignored[name(key, role)] = (
                f"used as written, but a step of {mini} leaves some of the {ranks} data-parallel ranks without a "
                "sequence"
            )
    actor = config.actor
    if name.is_written("clip_ratio") and actor.clip_ratio not in (actor.clip_ratio_low, actor.clip_ratio_high):
        findings.ignored[name("clip_ratio")] = "clip_ratio_low and clip_ratio_high are both written"
    if config.training.stage == "ray_ppo" and not actor.do_sample:
        for key, off in (("top_k", -1), ("top_p", 1.0)):
            if getattr(actor, key) != off:
                findings.ignored[name(key)] = "do_sample is false, so the likeliest token is always taken"
