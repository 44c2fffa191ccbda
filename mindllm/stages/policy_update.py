"""The actor's update: epochs of mini-batches on the responses of one iteration."""

import math

import torch

from mindllm.algorithms import masked_whiten, token_weights
from mindllm.config import RunConfig
from mindllm.data.sequences import Sequences
from mindllm.stages.session import Session
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.objectives import PolicyObjective
from mindllm.workers.trained import UpdateResult


def sequences_per_iteration(config: RunConfig) -> int:
    """Responses of one iteration."""
    return config.training.global_batch_size * config.actor.n_samples_per_prompt


def policy_steps(config: RunConfig, iterations: int) -> int:
    """Optimizer steps of the actor in ``iterations`` in which no sequence is dropped and no epoch stopped."""
    total = sequences_per_iteration(config)
    return iterations * config.actor.ppo_epochs * math.ceil(total / (config.actor.ppo_mini_batch_size or total))


def is_on_policy(config: RunConfig) -> bool:
    """Whether an iteration has one optimizer step, at which the actor still is the policy that responded."""
    return policy_steps(config, 1) == 1


def mini_batches(config: RunConfig, count: int, size: int | None, iteration: int, epoch: int) -> list[torch.Tensor]:
    """Indices of an epoch's mini-batches; the order depends on seed, iteration and epoch only."""
    order = torch.arange(count)
    if config.actor.shuffle_minibatch:
        seed = hash((config.training.seed, iteration, epoch)) & 0x7FFFFFFF
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return list(order.split(size or count))


def update_policy(session: Session, actor: ActorRollout, batch: Sequences, iteration: int) -> list[UpdateResult]:
    """``ppo_epochs`` passes over ``batch``, one optimizer step per mini-batch.

    With ``target_kl`` no further epoch begins once the mean of KL(old || new) over an epoch's steps exceeds it.
    """
    settings = session.config.actor
    results: list[UpdateResult] = []
    for epoch in range(settings.ppo_epochs):
        steps = []
        for members in mini_batches(session.config, len(batch), settings.ppo_mini_batch_size, iteration, epoch):
            mini_batch = batch.select(members)
            if session.config.algorithm.whitens("minibatch"):
                mini_batch.advantages = masked_whiten(mini_batch.advantages, mini_batch.loss_mask)
            if settings.loss_agg_mode != "token-mean":
                mini_batch.loss_weights = token_weights(
                    mini_batch.loss_mask, mini_batch.response_lengths, settings.loss_agg_mode, settings.max_new_tokens
                )
            steps.append(actor.update(mini_batch, _objective(session.config, mini_batch)))
            session.record_step("actor", steps[-1])
        results += steps
        if settings.target_kl is not None and sum(s.metrics["ppo_kl"] for s in steps) / len(steps) > settings.target_kl:
            break
    return results


def _objective(config: RunConfig, mini_batch: Sequences) -> PolicyObjective:
    settings, algorithm = config.actor, config.algorithm
    return PolicyObjective(
        num_tokens=max(1, int(mini_batch.loss_mask.sum())),
        temperature=settings.temperature,
        clip_low=settings.clip_ratio_low,
        clip_high=settings.clip_ratio_high,
        dual_clip=settings.clip_ratio_c,
        entropy_coeff=settings.entropy_coeff,
        kl_coef=algorithm.kl_loss_coef if algorithm.use_kl_loss else 0.0,
        kl_kind=algorithm.kl_loss_type,
    )
