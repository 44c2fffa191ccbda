"""Checks that need several keys at once. Each is one sentence that names the key as it was written."""

from collections.abc import Iterator, Mapping

from mindllm.config.layers import ACTOR, REF, Findings
from mindllm.config.roles import RoleConfig
from mindllm.config.schema import RunConfig
from mindllm.config.settle import same_layout


class _Names:
    """The dotted name under which each key was written, or would be."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def __call__(self, key: str, home: str = ACTOR) -> str:
        return self._sources.get(key, f"{home}.{key}")


def check_run(config: RunConfig, sources: Mapping[str, str], findings: Findings) -> None:
    """Note in ``findings`` every contradiction between keys of ``config``; ``sources`` maps keys to dotted names."""
    name = _Names(sources)
    findings.errors.extend(_evaluation(config, name))
    findings.errors.extend(_schedule(config, name))
    findings.errors.extend(_layout(config.actor, "the actor", name))
    findings.errors.extend(_processes(config, name))
    if config.training.stage == "ray_grpo":
        findings.errors.extend(_rollout(config, name))
        findings.errors.extend(_kl(config))
        findings.errors.extend(_rewards(config))
    if config.ref is not None:
        findings.errors.extend(_reference(config))
    findings.errors.extend(_batches(config, name))
    _note_unread(config, sources, findings)


def _evaluation(config: RunConfig, name: _Names) -> Iterator[str]:
    training = config.training
    if training.eval_interval is not None and training.eval_data_path is None:
        yield f"training.eval_interval is {training.eval_interval} but training.eval_data_path is missing"
    if training.eval_interval is None and training.eval_data_path is not None:
        yield "training.eval_data_path is never read; write training.eval_interval too"
    if training.eval_interval is None and training.eval_n_samples_per_prompt > 1:
        yield "training.eval_n_samples_per_prompt is never read; write training.eval_interval too"
    if training.eval_n_samples_per_prompt > 1 and not config.actor.do_sample:
        yield f"{name('do_sample')} is false, so training.eval_n_samples_per_prompt must be 1"


def _schedule(config: RunConfig, name: _Names) -> Iterator[str]:
    actor = config.actor
    if actor.lr_warmup_fraction > 0 and actor.lr_warmup_iters > 0:
        yield f"{name('lr_warmup_fraction')} and {name('lr_warmup_iters')} say the same thing; keep one"
    if actor.min_lr > actor.lr:
        yield f"{name('min_lr')} ({actor.min_lr}) must not be greater than lr ({actor.lr})"
    steps = config.training.train_iters * _steps_per_iteration(config)
    if actor.lr_warmup_iters >= steps and actor.lr_warmup_iters > 0:
        yield (
            f"{name('lr_warmup_iters')} ({actor.lr_warmup_iters}) must be less than the run's {steps} optimizer steps"
        )
    if actor.save in (actor.load, config.ref.load if config.ref else None):
        yield f"{name('save')} is the directory that load reads ({actor.load}); write another"


def _layout(role: RoleConfig, who: str, name: _Names, home: str = ACTOR) -> Iterator[str]:
    tp, pp = role.tensor_model_parallel_size, role.pipeline_model_parallel_size
    chunk = role.num_layers_per_virtual_pipeline_stage
    heads, layers = role.model_keys.get("num_attention_heads"), role.model_keys.get("num_layers")
    if chunk is not None and pp == 1:
        yield (
            f"{name('num_layers_per_virtual_pipeline_stage', home)} needs pipeline_model_parallel_size > 1 "
            f"(it is 1 for {who})"
        )
    if heads is not None and heads % tp:
        yield f"{name('tensor_model_parallel_size', home)} ({tp}) must divide {who}'s {heads} attention heads"
    if layers is not None and layers % pp:
        yield f"{name('pipeline_model_parallel_size', home)} ({pp}) must divide {who}'s {layers} layers"
    elif layers is not None and chunk is not None and (layers // pp) % chunk:
        yield (
            f"{name('num_layers_per_virtual_pipeline_stage', home)} ({chunk}) must divide the {layers // pp} layers "
            f"of each pipeline stage of {who}"
        )


def _processes(config: RunConfig, name: _Names) -> Iterator[str]:
    actor, world = config.actor, config.resource_pool.world_size("actor_rollout")
    if actor.num_gpus_for_train not in (None, world):
        yield (
            f"{name('num_gpus_for_train')} is {actor.num_gpus_for_train} but resource_pool.actor_rollout is {world}; "
            "write the same number, or only one of them"
        )
    yield from _divisible(actor, world, "actor_rollout")
    if config.training.executor == "inline" and (world > 1 or not config.resource_pool.ref_shares_actor):
        yield (
            "training.executor inline runs one process for all roles, but resource_pool and the parallel sizes ask "
            "for more; write ray"
        )


def _divisible(role: RoleConfig, world: int, pool: str) -> Iterator[str]:
    tp, pp = role.tensor_model_parallel_size, role.pipeline_model_parallel_size
    if world % (tp * pp):
        yield (
            f"resource_pool.{pool} ({world} processes) must be a multiple of tensor_model_parallel_size x "
            f"pipeline_model_parallel_size ({tp} x {pp})"
        )


def _rollout(config: RunConfig, name: _Names) -> Iterator[str]:
    actor = config.actor
    samples = actor.n_samples_per_prompt
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


def _rewards(config: RunConfig) -> Iterator[str]:
    functions = config.reward.functions
    names = [function.name for function in functions]
    if not functions:
        yield "reward.functions is missing: name at least one reward, e.g. accuracy or format"
    elif all(function.weight == 0 for function in functions):
        yield "reward.functions: every weight is 0, so there is nothing to learn from"
    for twice in sorted({name for name in names if names.count(name) > 1}):
        yield f"reward.functions names '{twice}' twice; keep one, with the weight that you mean"


def _reference(config: RunConfig) -> Iterator[str]:
    ref, actor = config.ref, config.actor
    assert ref is not None
    yield from _layout(ref, "the reference", _Names({}), REF)
    if not config.resource_pool.ref_shares_actor:
        yield from _divisible(ref, config.resource_pool.world_size("ref"), "ref")
    elif not same_layout(actor, ref):
        yield (
            "resource_pool.ref is actor_rollout, but roles that share processes need the same TP, PP and VPP; write "
            f"a number of processes, or {REF}.tensor_model_parallel_size: {actor.tensor_model_parallel_size} and "
            f"pipeline_model_parallel_size: {actor.pipeline_model_parallel_size}"
        )
    if ref.seq_length < actor.seq_length:
        yield f"{REF}.seq_length ({ref.seq_length}) must be at least the actor's ({actor.seq_length})"


def _sequences_per_iteration(config: RunConfig) -> int:
    return config.training.global_batch_size * config.actor.n_samples_per_prompt


def _steps_per_iteration(config: RunConfig) -> int:
    total = _sequences_per_iteration(config)
    return config.actor.ppo_epochs * max(1, total // (config.actor.ppo_mini_batch_size or total))


def _batches(config: RunConfig, name: _Names) -> Iterator[str]:
    total = _sequences_per_iteration(config)
    mini = config.actor.ppo_mini_batch_size
    product = f"training.global_batch_size x n_samples_per_prompt ({total})"
    if mini is not None and mini > total:
        yield f"{name('ppo_mini_batch_size')} ({mini}) must not exceed {product}"
        return
    if mini is not None and total % mini:
        yield f"{name('ppo_mini_batch_size')} ({mini}) must divide {product}"
    if total < config.data_parallel_size():
        what = "training.global_batch_size" if config.training.stage == "sft" else product
        yield f"{what} is {total}, less than the {config.data_parallel_size()} data-parallel ranks, so some would idle"


def _note_unread(config: RunConfig, sources: Mapping[str, str], findings: Findings) -> None:
    actor, ranks = config.actor, config.data_parallel_size()
    if actor.lr_decay_style == "constant" and actor.min_lr > 0:
        findings.ignored[sources["min_lr"]] = "lr_decay_style is constant, so the learning rate stays at lr"
    if "clip_ratio" in sources and actor.clip_ratio not in (actor.clip_ratio_low, actor.clip_ratio_high):
        findings.ignored[sources["clip_ratio"]] = "clip_ratio_low and clip_ratio_high are both written"
    if (actor.ppo_mini_batch_size or ranks) < ranks:
        findings.ignored[sources["ppo_mini_batch_size"]] = (
            f"used as written, but a step of {actor.ppo_mini_batch_size} leaves some of the {ranks} "
            "data-parallel ranks without a sequence"
        )
