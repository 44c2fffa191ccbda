"""Group relative policy optimization (Shao et al., 2024, https://arxiv.org/abs/2402.03300)."""

import torch

from mindllm.algorithms import broadcast_to_tokens, group_advantages, kl_penalty, mean
from mindllm.config import RunConfig
from mindllm.data import Prompt, PromptDataset
from mindllm.data.sequences import Sequences
from mindllm.errors import UserError
from mindllm.stages.policy_update import is_on_policy, policy_steps, update_policy
from mindllm.stages.resume import make_sampler
from mindllm.stages.reward_model import RewardModelScorer
from mindllm.stages.rollouts import Rollouts, headline, known_mean, rollout_metrics, token_sums
from mindllm.stages.session import Session, mean_metrics
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.ref import Ref


def run(config: RunConfig) -> None:
    """Train ``config.actor`` by GRPO; see ``mindllm.stages.run``."""
    training = config.training
    prompts = PromptDataset(config.actor.data_path)
    held_out = PromptDataset(training.eval_data_path) if training.eval_data_path else None
    sampler = make_sampler(len(prompts), training)
    with Session(config, headline(config), {"actor": config.actor}, {"sampler": sampler}, prompts, held_out) as session:
        if not session.is_complete:
            with Rollouts(config, session.hf_dir("actor")) as rollouts:
                actor = session.start("actor", session.cluster.start_actor, policy_steps(config, training.train_iters))
                ref, reward = session.start_ref(), RewardModelScorer.start(session, rollouts)
                for iteration in session.iterations():
                    rows = [prompts[index] for index in sampler.next_indices()]
                    metrics = train_iteration(session, rollouts, actor, ref, reward, rows, iteration)
                    if held_out is not None and session.is_due(training.eval_interval, iteration):
                        with session.measure("eval", len(held_out) * training.eval_n_samples_per_prompt):
                            metrics |= rollouts.evaluate(actor, held_out, iteration, reward)
                    timings = session.measurements()
                    metrics["timing/tokens_per_s"] = metrics["rollout/total_tokens"] / timings["timing/iteration"]
                    session.log.log(iteration, {**metrics, **timings})
        session.export()


def train_iteration(
    session: Session,
    rollouts: Rollouts,
    actor: ActorRollout,
    ref: Ref | None,
    reward: RewardModelScorer | None,
    rows: list[Prompt],
    iteration: int,
) -> dict[str, float]:
    """One iteration: respond, reward, compare within groups, update; returns its metrics."""
    config, measure = session.config, session.measure
    temperature = config.actor.temperature
    with measure("iteration"):
        with measure("generate", len(rows) * config.actor.n_samples_per_prompt):
            batch, stats = rollouts.generate(actor, rows, iteration)
        with measure("reward"):
            batch, reward_metrics = rollouts.score(batch, rows)
            if reward is not None:
                batch.rewards, model_metrics = reward(batch, rows)
                reward_metrics |= model_metrics
        if config.algorithm.use_kl_in_reward or not is_on_policy(config):
            with measure("old_logprobs"):
                batch.old_logprobs = actor.logprobs(batch, temperature)
        if ref is not None:
            with measure("ref"):
                batch.ref_logprobs = ref.logprobs(batch, temperature)
        metrics = reward_metrics | add_advantages(batch, config)
        with measure("update_actor"):
            results = update_policy(session, actor, batch, iteration)
    if session.is_due(session.training.sample_dump_interval, iteration):
        session.log.samples(iteration, rollouts.dump(batch, rows))
    return metrics | rollout_metrics(batch, stats, results) | mean_metrics(results, "actor")


def add_advantages(batch: Sequences, config: RunConfig) -> dict[str, float]:
    """Set ``loss_mask`` and ``advantages`` from the rewards, less the KL penalty where it belongs to the reward."""
    algorithm, metrics = config.algorithm, {}
    rewards = batch.rewards
    # A response on which no reward has an opinion takes part in no term of the loss.
    batch.loss_mask = broadcast_to_tokens(~rewards.isnan(), batch.response_lengths)
    if algorithm.use_kl_in_reward and batch.ref_logprobs is not None:
        penalties = token_sums(kl_penalty(batch.old_logprobs, batch.ref_logprobs, algorithm.kl_penalty), batch)
        rewards = rewards - algorithm.kl_ctrl.kl_coef * penalties
        metrics["critic/kl/mean"] = float((penalties / batch.response_lengths.clamp(min=1)).mean())
    advantages = group_advantages(rewards, batch.prompt_index, algorithm.adv_estimator)
    if not advantages.float().isfinite().all():
        largest = float(rewards.nan_to_num(0.0).abs().max())
        raise UserError(
            f"algorithm.adv_estimator '{algorithm.adv_estimator}': rewards of up to {largest:.1e} "
            f"give advantages that fp32 does not hold ({torch.finfo(torch.float32).max:.1e}); give the rewards smaller "
            "weights, or use group_norm"
        )
    batch.advantages = broadcast_to_tokens(advantages.float(), batch.response_lengths)
    metrics["critic/rewards/mean"] = known_mean(rewards)
    metrics["critic/advantages/mean"] = mean(advantages)
    metrics["critic/advantages/zero_fraction"] = float((advantages == 0).double().mean())
    return metrics
