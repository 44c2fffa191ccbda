"""The independent reference: transformers models, one sequence at a time, and losses written out in plain torch."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from mindllm.data.sequences import Sequences
from tests.distributed.models import TinyModel

TEMPERATURE = 0.7
CLIP_LOW, CLIP_HIGH, DUAL_CLIP = 0.2, 0.28, 1.5
ENTROPY_COEFF, KL_COEF = 0.01, 0.1


def response_logits(model: torch.nn.Module, prompt: list[int], response: list[int]) -> Tensor:
    """[response tokens, vocabulary] logits from which each response token is predicted."""
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
    return logits[len(prompt) - 1 : len(prompt) - 1 + len(response)]


def response_logprobs(model: torch.nn.Module, sequences: Sequences, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [response tokens] of all sequences, in order."""
    chosen, entropies = [torch.empty(0)], [torch.empty(0)]
    for prompt, response in sequences.token_lists():
        logprobs = (response_logits(model, prompt, response) / temperature).log_softmax(-1)
        chosen.append(logprobs[torch.arange(len(response)), response])
        entropies.append(-(logprobs.exp() * logprobs).sum(-1))
    return torch.cat(chosen), torch.cat(entropies)


def make_batch(model: TinyModel) -> Sequences:
    """Ragged sequences with every field an update reads.

    Responses hold token id 0, the last id and those on both sides of the border between two vocabulary shards; one
    response is empty, one prompt is a single token, and some tokens are masked, with old log-probs of -inf.
    """
    generator = torch.Generator().manual_seed(7)
    border = (model.vocab_size + 1) // 2
    special = [0, border - 1, border, model.vocab_size - 1]
    prompts, responses = [], []
    for prompt_length, response_length in [(1, 9), (17, 4), (6, 0), (9, 22), (3, 1), (12, 13), (5, 5), (8, 11)]:
        prompts.append(torch.randint(model.vocab_size, (prompt_length,), generator=generator).tolist())
        responses.append(torch.randint(model.vocab_size, (response_length,), generator=generator).tolist())
    responses[0][:4] = special
    responses[3][5:9] = special
    responses[4] = [0]
    sequences = Sequences.from_lists(prompts, responses)
    count = sequences.num_response_tokens

    def noise(scale: float) -> Tensor:
        return torch.randn(count, generator=generator) * scale

    with torch.no_grad():
        logprobs, _ = response_logprobs(model.hf, sequences, TEMPERATURE)
    sequences.loss_mask = torch.rand(count, generator=generator) > 0.15
    sequences.loss_mask[:4] = True
    sequences.old_logprobs = torch.where(sequences.loss_mask, logprobs + noise(0.4), -torch.inf)
    sequences.ref_logprobs = logprobs + noise(0.5)
    per_sequence = torch.randn(len(sequences), generator=generator)
    sequences.advantages = per_sequence.repeat_interleave(sequences.response_lengths)
    return sequences


def sft_terms(model: torch.nn.Module, batch: Sequences) -> dict[str, Tensor]:
    """Mean negative log-likelihood of the trained tokens, under ``loss``."""
    logprobs, _ = response_logprobs(model, batch, 1.0)
    return {"loss": -logprobs[batch.loss_mask].mean()}


def grpo_terms(model: torch.nn.Module, batch: Sequences) -> dict[str, Tensor]:
    """Clipped policy loss with a dual clip, entropy bonus and k3 KL, each a mean over trained tokens; and ``loss``."""
    logprobs, entropy = response_logprobs(model, batch, TEMPERATURE)
    kept = batch.loss_mask
    logprobs, entropy, advantages = logprobs[kept], entropy[kept], batch.advantages[kept]
    ratio = (logprobs - batch.old_logprobs[kept]).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages)
    objective = torch.where(advantages < 0, torch.maximum(objective, DUAL_CLIP * advantages), objective)
    difference = batch.ref_logprobs[kept] - logprobs
    terms = {
        "pg_loss": -objective.mean(),
        "entropy": entropy.mean(),
        "kl_loss": (difference.exp() - 1 - difference).mean(),
    }
    terms["loss"] = terms["pg_loss"] - ENTROPY_COEFF * terms["entropy"] + KL_COEF * terms["kl_loss"]
    return terms


TERMS = {"sft": sft_terms, "grpo": grpo_terms}


@dataclass(frozen=True)
class Adam:
    """Hyperparameters of AdamW; epsilon is so large that rounding of a gradient near zero is not amplified."""

    lr: float = 1e-2
    weight_decay: float = 0.1
    clip_grad: float = 0.5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-2


class TorchTrainer:
    """A copy of a transformers model trained by ``torch.optim.AdamW``; matrices decay, vectors do not."""

    def __init__(self, model: TinyModel, adam: Adam) -> None:
        self.model = copy.deepcopy(model.hf)
        self.adam = adam
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": adam.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=adam.lr, betas=(adam.beta1, adam.beta2), eps=adam.eps)

    def backward(self, kind: str, batch: Sequences) -> dict[str, float]:
        """Fresh gradients of one objective; its terms."""
        self.optimizer.zero_grad()
        terms = TERMS[kind](self.model, batch)
        terms["loss"].backward()
        return {name: float(value.detach()) for name, value in terms.items()}

    def step(self, lr: float | None = None) -> float:
        """Clip and update, with ``lr`` instead of the first rate where given; the gradient norm before clipping."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.adam.lr if lr is None else lr
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.adam.clip_grad)
        self.optimizer.step()
        return float(norm)

    def adopt(self, adam: Adam) -> None:
        """Go on with other hyperparameters, keeping the moments."""
        self.adam = adam
        for group in self.optimizer.param_groups:
            group["betas"], group["eps"] = (adam.beta1, adam.beta2), adam.eps
            group["weight_decay"] = adam.weight_decay if group["weight_decay"] else 0.0

    def gradients(self) -> dict[str, Tensor]:
        """Copies of the gradients by Hugging Face name."""
        return {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights by Hugging Face name."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
