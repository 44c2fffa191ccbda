"""Outcome reward model: a scalar head trained on preference pairs (Bradley and Terry, 1952; Ouyang et al., 2022)."""

import torch

from mindllm.algorithms import bradley_terry_loss
from mindllm.config import RunConfig
from mindllm.data import PairwiseDataset
from mindllm.data.sequences import Sequences
from mindllm.stages.resume import make_sampler
from mindllm.stages.session import Session, mean_metrics
from mindllm.workers.objectives import PairwiseObjective
from mindllm.workers.reward import TrainedReward

HEADLINE = {"loss": "reward/loss", "accuracy": "reward/accuracy", "eval accuracy": "eval/accuracy"}


def run(config: RunConfig) -> None:
    """Train ``config.actor``, a model with a scalar head, on pairs; see ``mindllm.stages.run``."""
    training = config.training
    pairs = PairwiseDataset(config.actor.data_path)
    held_out = PairwiseDataset(training.eval_data_path) if training.eval_data_path else None
    sampler = make_sampler(len(pairs), training)
    with Session(config, HEADLINE, {"actor": config.actor}, {"sampler": sampler}, pairs, held_out) as session:
        if not session.is_complete:
            model = session.start("actor", session.cluster.start_trained_reward, training.train_iters)
            for iteration in session.iterations():
                with session.measure("iteration"):
                    batch = to_sequences(pairs, sampler.next_indices())
                    with session.measure("update"):
                        result = model.update(batch, PairwiseObjective(len(batch) // 2))
                    session.record_step("actor", result)
                    metrics = mean_metrics([result], "reward")
                    if held_out is not None and session.is_due(training.eval_interval, iteration):
                        with session.measure("eval"):
                            metrics |= evaluate(model, held_out)
                timings = session.measurements()
                metrics["timing/tokens_per_s"] = int(batch.lengths.sum()) / timings["timing/update"]
                session.log.log(iteration, {**metrics, **timings})
        session.export()


def to_sequences(pairs: PairwiseDataset, indices: list[int]) -> Sequences:
    """Pairs as neighbours, the chosen one first; each ends at the last token of its response."""
    texts, margins = [], []
    for index in indices:
        pair = pairs[index]
        for ids, labels in ((pair.chosen, pair.chosen_labels), (pair.rejected, pair.rejected_labels)):
            texts.append(ids[: int((labels != -100).nonzero()[0][-1]) + 1].tolist())
            margins.append(pair.margin)
    sequences = Sequences.from_lists([text[:-1] for text in texts], [text[-1:] for text in texts])
    if pairs.has_margins:
        sequences.margins = torch.tensor(margins, dtype=torch.float64)
    return sequences


def evaluate(model: TrainedReward, pairs: PairwiseDataset) -> dict[str, float]:
    """Loss without margins, and accuracy, over all ``pairs``."""
    chosen, rejected = model.scores(to_sequences(pairs, list(range(len(pairs))))).view(-1, 2).unbind(1)
    result = bradley_terry_loss(chosen, rejected, None, len(pairs))
    return {"eval/loss": float(result.loss), "eval/accuracy": float(result.accuracy_sum) / len(pairs)}
