"""Group relative policy optimisation (Shao et al., 2024, https://arxiv.org/abs/2402.03300)."""

import torch

from mindllm.algorithms import broadcast_to_tokens, group_advantages, kl_penalty
from mindllm.config import RunConfig
from mindllm.data import PromptDataset, ResumableSampler
from mindllm.data.sequences import Sequences
from mindllm.stages.rollouts import Rollouts, rollout_metrics, token_sums
from mindllm.stages.session import Session, mean_metrics, steps_per_iteration
from mindllm.workers.actor_rollout import ActorRollout, UpdateResult
from mindllm.workers.objectives import PolicyObjective
from mindllm.workers.ref import Ref

HEADLINE = {"reward": "critic/score/mean", "eval": "eval/score/mean", "tokens/s": "timing/tokens_per_s"}


def run(config: RunConfig) -> None:
    """Train ``config.actor`` by GRPO; see ``mindllm.stages.run``."""
    training = config.training
    prompts = PromptDataset(config.actor.data_path)
    held_out = PromptDataset(training.eval_data_path) if training.eval_data_path else None
    sampler = ResumableSampler(len(prompts), training.global_batch_size, training.seed, not training.no_shuffle)
    if config.actor.top_k > 0 or config.actor.top_p < 1.0:
        print("actor_rollout.top_k/top_p: responses are drawn from a cut distribution, ratios use the full softmax's")
    with Session(config, sampler, HEADLINE) as session:
        if not session.is_complete:
            with Rollouts(config) as rollouts:
                actor, ref = session.start_actor(steps_per_iteration(config)), session.start_ref()
                for iteration in session.iterations(actor):
                    metrics = train_iteration(session, rollouts, actor, ref, prompts, iteration)
                    if held_out is not None and session.is_due(training.eval_interval, iteration):
                        with session.timings.measure("eval"):
                            metrics |= rollouts.evaluate(actor, held_out, iteration)
                    timings = session.timings.take()
                    metrics["timing/tokens_per_s"] = metrics["rollout/total_tokens"] / timings["timing/iteration"]
                    session.log.log(iteration, {**metrics, **timings})
        session.export()


def train_iteration(
    session: Session,
    rollouts: Rollouts,
    actor: ActorRollout,
    ref: Ref | None,
    prompts: PromptDataset,
    iteration: int,
) -> dict[str, float]:
    """One iteration: respond, reward, compare within groups, update; returns its metrics."""
    config, measure = session.config, session.timings.measure
    temperature = config.actor.temperature
    with measure("iteration"):
        rows = [prompts[index] for index in session.sampler.next_indices()]
        with measure("generate"):
            batch, stats = rollouts.generate(actor, rows, iteration)
        with measure("reward"):
            batch, scores = rollouts.score(batch, rows)
        with measure("old_logprobs"):
            batch.old_logprobs = actor.logprobs(batch, temperature)
        if ref is not None:
            with measure("ref"):
                batch.ref_logprobs = ref.logprobs(batch, temperature)
        metrics = add_advantages(batch, config)
        with measure("update_actor"):
            results = update(session, actor, batch, iteration)
    if session.is_due(session.training.sample_dump_interval, iteration):
        session.log.samples(iteration, rollouts.dump(batch, rows, scores))
    return metrics | rollout_metrics(batch, stats, scores) | mean_metrics(results, "actor")


def add_advantages(batch: Sequences, config: RunConfig) -> dict[str, float]:
    """Set ``loss_mask`` and ``advantages`` from the rewards, less the KL penalty where it belongs to the reward."""
    algorithm, metrics = config.algorithm, {}
    batch.loss_mask = torch.ones(batch.num_response_tokens, dtype=torch.bool)
    rewards = batch.rewards
    if algorithm.use_kl_in_reward and batch.ref_logprobs is not None:
        penalties = token_sums(kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm.kl_penalty), batch)
        rewards = rewards - algorithm.kl_ctrl.kl_coef * penalties
        metrics["critic/kl/mean"] = float(penalties.mean())
    advantages = group_advantages(rewards, batch.prompt_index, algorithm.adv_estimator)
    batch.advantages = broadcast_to_tokens(advantages.float(), batch.response_lengths)
    known = rewards[~rewards.isnan()]
    metrics["critic/rewards/mean"] = float(known.mean()) if len(known) else float("nan")
    metrics["critic/advantages/mean"] = float(advantages.mean())
    metrics["critic/advantages/zero_fraction"] = float((advantages == 0).double().mean())
    return metrics


def update(session: Session, actor: ActorRollout, batch: Sequences, iteration: int) -> list[UpdateResult]:
    """``ppo_epochs`` passes over ``batch`` in mini-batches, one optimizer step each."""
    settings, algorithm = session.config.actor, session.config.algorithm
    size = settings.ppo_mini_batch_size or len(batch)
    results = []
    for epoch in range(settings.ppo_epochs):
        order = torch.arange(len(batch))
        if settings.shuffle_minibatch:
            seed = hash((session.training.seed, iteration, epoch)) & 0x7FFFFFFF
            order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
        for members in order.split(size):
            mini_batch = batch.select(members)
            objective = PolicyObjective(
                num_tokens=max(1, int(mini_batch.loss_mask.sum())),
                temperature=settings.temperature,
                clip_low=settings.clip_ratio_low,
                clip_high=settings.clip_ratio_high,
                dual_clip=settings.clip_ratio_c,
                entropy_coeff=settings.entropy_coeff,
                kl_coef=algorithm.kl_loss_coef if algorithm.use_kl_loss else 0.0,
                kl_kind=algorithm.kl_loss_type,
            )
            results.append(actor.update(mini_batch, objective))
            session.record_step(results[-1])
    return results
