"""Proximal policy optimization with a critic (Schulman et al., 2017; Ouyang et al., 2022, for language models)."""

import math
from dataclasses import dataclass

import torch

from mindllm.algorithms import (
    broadcast_to_tokens,
    explained_variance,
    gae,
    kl_penalty,
    make_kl_controller,
    masked_whiten,
    mean,
    token_rewards,
)
from mindllm.algorithms.controllers import KLController
from mindllm.config import RunConfig
from mindllm.data import Prompt, PromptDataset
from mindllm.data.sequences import FinishReason, Sequences
from mindllm.errors import UserError
from mindllm.stages.policy_update import mini_batches, policy_steps, sequences_per_iteration, update_policy
from mindllm.stages.resume import make_sampler
from mindllm.stages.reward_model import RewardModelScorer
from mindllm.stages.rollouts import Rollouts, headline, rollout_metrics, token_sums
from mindllm.stages.session import Session, mean_metrics
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.critic import Critic
from mindllm.workers.group import concurrently
from mindllm.workers.objectives import ValueObjective
from mindllm.workers.ref import Ref
from mindllm.workers.trained import UpdateResult


@dataclass(frozen=True)
class Roles:
    """The models of a run; a reference only where a KL term needs one, a reward model where one is configured."""

    actor: ActorRollout
    critic: Critic
    ref: Ref | None
    reward: RewardModelScorer | None


def run(config: RunConfig) -> None:
    """Train ``config.actor`` and ``config.critic`` by PPO; see ``mindllm.stages.run``."""
    training = config.training
    prompts = PromptDataset(config.actor.data_path)
    held_out = PromptDataset(training.eval_data_path) if training.eval_data_path else None
    sampler = make_sampler(len(prompts), training)
    controller = make_kl_controller(config.algorithm.kl_ctrl)
    trained = {"actor": config.actor, "critic": config.critic}
    stateful = {"sampler": sampler, "kl_controller": controller}
    with Session(config, headline(config), trained, stateful, prompts, held_out) as session:
        if not session.is_complete:
            with Rollouts(config, session.hf_dir("actor")) as rollouts:
                roles = start_roles(session, rollouts)
                for iteration in session.iterations():
                    rows = [prompts[index] for index in sampler.next_indices()]
                    metrics = train_iteration(session, rollouts, roles, controller, rows, iteration)
                    if held_out is not None and session.is_due(training.eval_interval, iteration):
                        with session.measure("eval", len(held_out) * training.eval_n_samples_per_prompt):
                            metrics |= rollouts.evaluate(roles.actor, held_out, iteration, roles.reward)
                    timings = session.timings.begins() | session.measurements()
                    metrics["timing/tokens_per_s"] = metrics["rollout/total_tokens"] / timings["timing/iteration"]
                    session.log.log(iteration, {**metrics, **timings})
        session.export()


def start_roles(session: Session, rollouts: Rollouts) -> Roles:
    """Start every model the configuration names."""
    config, iterations = session.config, session.training.train_iters
    actor_steps = policy_steps(config, max(1, iterations - config.critic.critic_warmup_iters))
    return Roles(
        actor=session.start("actor", session.cluster.start_actor, actor_steps),
        critic=session.start("critic", session.cluster.start_critic, critic_steps(config)),
        ref=session.start_ref(),
        reward=RewardModelScorer.start(session, rollouts),
    )


def critic_steps(config: RunConfig) -> int:
    """Optimizer steps of the critic in the whole run."""
    total, settings = sequences_per_iteration(config), config.critic
    per_epoch = math.ceil(total / (settings.critic_mini_batch_size or total))
    return config.training.train_iters * settings.critic_update_epochs * per_epoch


def train_iteration(
    session: Session,
    rollouts: Rollouts,
    roles: Roles,
    controller: KLController,
    rows: list[Prompt],
    iteration: int,
) -> dict[str, float]:
    """One iteration: respond, reward and evaluate side by side, estimate advantages, update; returns its metrics."""
    config, measure = session.config, session.measure
    with measure("iteration"):
        with measure("weight_sync"):
            roles.actor.sync_weights()
        with measure("generate", len(rows) * config.actor.n_samples_per_prompt):
            batch, stats = rollouts.generate(roles.actor, rows, iteration)
        with measure("reward"):
            batch, metrics = rollouts.score(batch, rows)
        last_values, model_metrics = score_states(session, roles, batch, rows)
        with measure("adv"):
            metrics |= model_metrics | add_advantages(batch, last_values, config, controller)
        updates = update_roles(session, roles, batch, iteration)
    if session.is_due(session.training.sample_dump_interval, iteration):
        session.log.samples(iteration, rollouts.dump(batch, rows))
    for role, results in updates.items():
        metrics |= mean_metrics(results, role)
    metrics |= critic_fit(metrics)
    return metrics | rollout_metrics(batch, stats, [])


def score_states(
    session: Session, roles: Roles, batch: Sequences, rows: list[Prompt]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Old and reference log-probs, values and the reward model's scores, side by side.

    Returns:
        (values [n] of the states after the last tokens, the reward model's metrics).
    """
    temperature, measure = session.config.actor.temperature, session.measure

    def old_logprobs() -> torch.Tensor:
        with measure("old_logprobs"):
            return roles.actor.logprobs(batch, temperature)

    def values() -> tuple[torch.Tensor, torch.Tensor]:
        with measure("values"):
            return roles.critic.values(batch)

    def ref_logprobs() -> torch.Tensor | None:
        if roles.ref is None:
            return None
        with measure("ref"):
            return roles.ref.logprobs(batch, temperature)

    def rewards() -> tuple[torch.Tensor, dict[str, float]]:
        if roles.reward is None:
            return batch.rewards, {}
        with measure("reward_model"):
            return roles.reward(batch, rows)

    batch.old_logprobs, (batch.values, last_values), batch.ref_logprobs, (batch.rewards, metrics) = concurrently(
        old_logprobs, values, ref_logprobs, rewards
    )
    return last_values, metrics


def add_advantages(
    batch: Sequences, last_values: torch.Tensor, config: RunConfig, controller: KLController
) -> dict[str, float]:
    """Set ``loss_mask``, ``advantages`` and ``returns``; adapts the KL coefficient for the next iteration."""
    algorithm, cut = config.algorithm, batch.finish_reason == FinishReason.LENGTH
    # A response on which no reward has an opinion takes part in no term of the loss.
    batch.loss_mask = broadcast_to_tokens(~batch.rewards.isnan(), batch.response_lengths)
    scores = batch.rewards.nan_to_num(0.0) - algorithm.missing_eos_penalty * cut
    kl, metrics = None, {}
    if algorithm.use_kl_in_reward and batch.ref_logprobs is not None:
        kl = kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm.kl_penalty)
        metrics["critic/kl_coef"] = controller.value
        per_token = token_sums(kl, batch) / batch.response_lengths.clamp(min=1)
        metrics["critic/kl/mean"] = float(per_token.mean())
    rewards = token_rewards(scores, kl, controller.value, batch.response_lengths)
    if algorithm.whiten_rewards:
        rewards = masked_whiten(rewards, batch.loss_mask, shift_mean=False)
    bootstrap = torch.where(cut, last_values, 0.0) if algorithm.bootstrap_truncated else None
    advantages, returns = gae(rewards, batch.values, batch.response_lengths, algorithm.gamma, algorithm.lam, bootstrap)
    metrics["critic/rewards/mean"] = mean(token_sums(rewards, batch))
    metrics["critic/advantages/mean"] = mean(advantages)
    metrics["critic/returns/mean"] = mean(returns)
    metrics["critic/values/mean"] = float(batch.values.mean())
    if algorithm.whitens("step"):
        advantages = masked_whiten(advantages, batch.loss_mask)
    batch.advantages, batch.returns = advantages.float(), returns.float()
    # Values of a critic that diverges are left to its update, which skips and counts such steps.
    rewards_dominate = bool((batch.values.abs() < scores.abs().max()).all())
    if rewards_dominate and not (batch.advantages.isfinite().all() and batch.returns.square().isfinite().all()):
        raise UserError(
            f"algorithm.adv_estimator 'gae': rewards of up to {float(scores.abs().max()):.1e} give returns whose "
            f"squares, the critic's loss, fp32 does not hold ({torch.finfo(torch.float32).max:.1e}); give the rewards "
            "smaller weights"
        )
    if kl is not None:
        controller.update(metrics["critic/kl/mean"], len(batch))
    return metrics


def update_roles(session: Session, roles: Roles, batch: Sequences, iteration: int) -> dict[str, list[UpdateResult]]:
    """Update critic and actor side by side; in the first ``critic_warmup_iters`` iterations the critic alone."""

    def critic() -> list[UpdateResult]:
        with session.measure("update_critic"):
            return update_critic(session, roles.critic, batch, iteration)

    def actor() -> list[UpdateResult]:
        with session.measure("update_actor"):
            return update_policy(session, roles.actor, batch, iteration)

    if iteration <= session.config.critic.critic_warmup_iters:
        return {"critic": critic()}
    critic_results, actor_results = concurrently(critic, actor)
    return {"critic": critic_results, "actor": actor_results}


def critic_fit(metrics: dict[str, float]) -> dict[str, float]:
    """Explained variance of the returns, from the moments that the critic's update reports."""
    moments = [metrics[f"critic/{name}"] for name in ("residual", "residual_square", "return", "return_square")]
    return {"critic/vf_explained_var": explained_variance(*moments)}


def update_critic(session: Session, critic: Critic, batch: Sequences, iteration: int) -> list[UpdateResult]:
    """``critic_update_epochs`` passes over ``batch``, one optimizer step per mini-batch."""
    settings, results = session.config.critic, []
    for epoch in range(settings.critic_update_epochs):
        for members in mini_batches(session.config, len(batch), settings.critic_mini_batch_size, iteration, epoch):
            mini_batch = batch.select(members)
            tokens = max(1, int(mini_batch.loss_mask.sum()))
            results.append(critic.update(mini_batch, ValueObjective(tokens, settings.cliprange_value)))
            session.record_step("critic", results[-1])
    return results
