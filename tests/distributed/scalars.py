"""Models that score with one number: tiny Hugging Face classifiers, their workers, and their losses in plain torch."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers import AutoModelForSequenceClassification

from mindllm.config import CriticConfig
from mindllm.convert import convert_hf_to_mcore
from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.models.families import load_architecture
from mindllm.parallel.groups import coordinates
from mindllm.workers.dispatch import Scatter, Share, combine_metrics
from mindllm.workers.model import batch_limits
from mindllm.workers.objectives import Objective, PairwiseObjective, ValueObjective
from tests.distributed.models import CONFIGS, TinyModel
from tests.distributed.ranks import actor_config
from tests.distributed.reference import Adam, TorchTrainer

CLIP_RANGE = 0.3
NAMES = ("qwen3", "qwen2")  # a base whose word embeddings were tied, and one with biases


def make_scalar_model(name: str, directory: Path) -> TinyModel:
    """Write the tiny classifier ``name`` with one label under ``directory`` in both forms."""
    torch.manual_seed(10 + sorted(CONFIGS).index(name))
    config = copy.deepcopy(CONFIGS[name])
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".bias"):
                parameter.normal_(0.0, 0.5)
            elif "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory / "hf")
    checkpoint = convert_hf_to_mcore(directory / "hf", directory / "mcore")
    return TinyModel(name, directory / "hf", checkpoint, load_architecture(directory / "hf"), model.float().eval())


def critic_config(layout: Layout, adam: Adam | None = None, **changes: Any) -> CriticConfig:
    """The keys of ``ranks.actor_config`` that a critic has too."""
    values = actor_config(layout, adam, **changes).model_dump()
    return CriticConfig(**{key: value for key, value in values.items() if key in CriticConfig.model_fields})


def share_of(batch: Sequences, config: CriticConfig, unit: int = 1) -> Share:
    """This rank's part of ``batch``; ``unit`` neighbours stay together."""
    place = coordinates()
    return Scatter(batch, batch_limits(config, place.data_size), unit).shares[place.data_rank]


def values_of(model: torch.nn.Module, prompt: list[int], response: list[int]) -> Tensor:
    """[tokens] the head's output at every token of one sequence."""
    hidden = model.model(input_ids=torch.tensor([prompt + response])).last_hidden_state[0]
    return model.score(hidden)[:, 0]


def action_values(model: torch.nn.Module, batch: Sequences) -> Tensor:
    """[response tokens] values of the states in which the tokens were chosen."""
    parts = [torch.empty(0)]
    for prompt, response in batch.token_lists():
        parts.append(values_of(model, prompt, response)[len(prompt) - 1 : len(prompt) + len(response) - 1])
    return torch.cat(parts)


def last_scores(model: torch.nn.Module, batch: Sequences) -> Tensor:
    """[n] the class's own logits, one sequence at a time."""
    return torch.cat([model(input_ids=torch.tensor([p + r])).logits[:, 0] for p, r in batch.token_lists()])


def value_terms(model: torch.nn.Module, batch: Sequences) -> dict[str, Tensor]:
    """Clipped value loss over the trained tokens, under ``vf_loss``, and the moments that are reported."""
    kept = batch.loss_mask
    values, old, returns = action_values(model, batch)[kept], batch.values[kept], batch.returns[kept]
    plain = (values - returns) ** 2
    clipped = (torch.clamp(values, old - CLIP_RANGE, old + CLIP_RANGE) - returns) ** 2
    return {
        "vf_loss": torch.max(plain, clipped).mean() / 2,
        "vf_clipfrac": (clipped > plain).float().mean(),
        "value": values.mean(),
        "residual": (returns - values).mean(),
        "residual_square": plain.mean(),
        "return": returns.mean(),
        "return_square": (returns**2).mean(),
    }


def pair_terms(model: torch.nn.Module, batch: Sequences) -> dict[str, Tensor]:
    """Bradley-Terry loss with margins, under ``loss``, and what is reported beside it."""
    chosen, rejected = last_scores(model, batch).view(-1, 2).unbind(1)
    margins = torch.zeros(len(chosen)) if batch.margins is None else batch.margins[::2].float()
    return {
        "loss": softplus(rejected + margins - chosen).mean(),
        "accuracy": (chosen > rejected).float().mean(),
        "chosen_score": chosen.mean(),
        "rejected_score": rejected.mean(),
    }


TERMS = {"value": (value_terms, "vf_loss"), "pairs": (pair_terms, "loss")}


class ScalarTrainer(TorchTrainer):
    """``TorchTrainer`` for the objectives of scalar heads."""

    def backward(self, kind: str, batch: Sequences) -> dict[str, float]:
        """See ``TorchTrainer``."""
        self.optimizer.zero_grad()
        function, loss = TERMS[kind]
        terms = function(self.model, batch)
        terms[loss].backward()
        return {name: float(value.detach()) for name, value in terms.items()}


def objective(kind: str, batch: Sequences) -> Objective:
    """The objective whose terms ``TERMS[kind]`` writes out."""
    if kind == "pairs":
        return PairwiseObjective(len(batch) // 2)
    return ValueObjective(int(batch.loss_mask.sum()), CLIP_RANGE)


def combined(answers: list[Any]) -> tuple[dict[str, float], float]:
    """Metrics and gradient norm of ``update`` as the driver sees them; ``answers`` of all ranks, None included."""
    heard = [answer for answer in answers if answer is not None]
    norms = {step.grad_norm for _, step in heard}
    assert len(norms) == 1, f"ranks report different gradient norms: {norms}"
    return combine_metrics([sums for sums, _ in heard]), norms.pop()
