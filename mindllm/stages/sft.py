"""Supervised fine-tuning: maximum likelihood of the labelled tokens, one optimizer step per iteration."""

import numpy as np
import torch

from mindllm.config import RunConfig
from mindllm.data import InstructionDataset
from mindllm.data.sequences import Sequences
from mindllm.stages.resume import make_sampler
from mindllm.stages.session import Session, mean_metrics
from mindllm.workers.actor_rollout import ActorRollout
from mindllm.workers.objectives import SftObjective

HEADLINE = {"loss": "sft/loss", "eval loss": "eval/loss", "tokens/s": "timing/tokens_per_s"}


def run(config: RunConfig) -> None:
    """Train ``config.actor`` on its data; see ``mindllm.stages.run``."""
    training = config.training
    examples = InstructionDataset(config.actor.data_path)
    held_out = InstructionDataset(training.eval_data_path) if training.eval_data_path else None
    sampler = make_sampler(len(examples), training)
    with Session(config, HEADLINE, {"actor": config.actor}, {"sampler": sampler}, examples, held_out) as session:
        if not session.is_complete:
            actor = session.start("actor", session.cluster.start_actor, total_steps=training.train_iters)
            for iteration in session.iterations():
                with session.measure("iteration"):
                    batch = to_sequences(examples, sampler.next_indices())
                    with session.measure("update"):
                        result = actor.update(batch, SftObjective(int(batch.loss_mask.sum())))
                    session.record_step("actor", result)
                    metrics = mean_metrics([result], "sft")
                    if held_out is not None and session.is_due(training.eval_interval, iteration):
                        with session.measure("eval"):
                            metrics["eval/loss"] = evaluate(actor, held_out)
                timings = session.measurements()
                metrics["timing/tokens_per_s"] = int(batch.lengths.sum()) / timings["timing/update"]
                session.log.log(iteration, {**metrics, **timings})
        session.export()


def to_sequences(examples: InstructionDataset, indices: list[int]) -> Sequences:
    """Examples as sequences whose "response" runs from the first to the last trained token.

    A packed example gives one sequence per dialogue in it, so that none sees another. A token at position 0 has no
    context and cannot be trained; tokens after the last trained one have no influence.
    """
    prompts, responses, masks = [], [], []
    for index in indices:
        example = examples[index]
        bounds = np.cumsum(example.segments)[:-1]
        for ids, labels in zip(np.split(example.input_ids, bounds), np.split(example.labels, bounds), strict=True):
            trained = (labels[1:] != -100).nonzero()[0] + 1
            if not len(trained):
                continue
            start, stop = int(trained[0]), int(trained[-1]) + 1
            prompts.append(ids[:start].tolist())
            responses.append(ids[start:stop].tolist())
            masks.append(torch.from_numpy(labels[start:stop] != -100))
    sequences = Sequences.from_lists(prompts, responses)
    sequences.loss_mask = torch.cat(masks)
    return sequences


def evaluate(actor: ActorRollout, examples: InstructionDataset) -> float:
    """Mean negative log-likelihood, in nats, of the trained tokens of all ``examples``."""
    batch = to_sequences(examples, list(range(len(examples))))
    logprobs = actor.logprobs(batch, temperature=1.0)
    return -float(logprobs.double()[batch.loss_mask].mean())
