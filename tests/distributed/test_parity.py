"""Logits and log-probs of every family equal those of transformers, packed, ragged and at any layout."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mindllm.data.sequences import Sequences
from mindllm.models.builder import Layout
from mindllm.parallel.groups import coordinates
from mindllm.parallel.schedule import forward_only
from tests.distributed import ranks
from tests.distributed.models import CONFIGS, ORIGINAL_LENGTH, TinyModel
from tests.distributed.pool import run_ranks
from tests.distributed.reference import TEMPERATURE, response_logits, response_logprobs

LAYOUTS = {"tp1": ranks.TP1, "tp2": ranks.TP2, "pp2": ranks.PP2, "tp4": ranks.TP4}


def make_sequences(vocab_size: int) -> Sequences:
    """Ragged lengths, some beyond the original length of the scaled rotary embedding."""
    generator = torch.Generator().manual_seed(3)

    def ids(count: int) -> list[int]:
        return torch.randint(vocab_size, (count,), generator=generator).tolist()

    lengths = [(1, 7), (20, 26), (4, 40), (11, 2), (7, 0), (7, 9), (7, 9)]
    return Sequences.from_lists([ids(p) for p, _ in lengths], [ids(r) for _, r in lengths])


def scores_on_rank(models: list[TinyModel], layout: Layout) -> list[tuple[list[Tensor], Tensor | None, int]]:
    """Per model: this rank's columns of the logits (nothing before the last stage), log-probs, tensor rank."""
    results = []
    for model in models:
        config = ranks.actor_config(layout, max_tokens_per_micro_batch=60)
        worker = ranks.make_worker(model, config)
        share = ranks.share_of(make_sequences(model.vocab_size), config)
        logits = forward_only(worker.chunks, worker.pack(share), lambda _, logits: logits.clone())
        results.append((logits, worker.logprobs(share, TEMPERATURE), coordinates().tensor_rank))
    return results


def in_share_order(model: TinyModel, config: Any) -> Sequences:
    return ranks.Scatter(make_sequences(model.vocab_size), ranks.batch_limits(config, 1)).shares[0].sequences


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_and_logprobs_equal_those_of_hugging_face(name: str, models: dict[str, TinyModel]) -> None:
    layout = LAYOUTS[name]
    answers = run_ranks(layout, 1, scores_on_rank, list(models.values()), layout)
    config = ranks.actor_config(layout, max_tokens_per_micro_batch=60)
    for number, model in enumerate(models.values()):
        sequences = in_share_order(model, config)
        with torch.no_grad():
            expected = torch.cat([response_logits(model.hf, *lists) for lists in sequences.token_lists()])
            logprobs, _ = response_logprobs(model.hf, sequences, TEMPERATURE)
        shards = {rank: torch.cat(logits) for logits, _, rank in (answer[number] for answer in answers) if logits}
        ours = torch.cat([shards[rank] for rank in range(layout.tensor)], dim=1)[:, : model.vocab_size]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)
        scored = [values for _, values, _ in (answer[number] for answer in answers) if values is not None]
        assert len(scored) == 1
        torch.testing.assert_close(scored[0], logprobs, rtol=0, atol=1e-5)


def test_the_lengths_tested_feel_the_rope_scaling(models: dict[str, TinyModel]) -> None:
    plain = copy.deepcopy(CONFIGS["llama"])
    plain.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    unscaled = AutoModelForCausalLM.from_config(plain).eval()
    unscaled.load_state_dict(models["llama"].hf.state_dict())
    prompt, response = make_sequences(models["llama"].vocab_size).token_lists()[1]
    assert len(prompt + response) > ORIGINAL_LENGTH
    with torch.no_grad():
        difference = response_logits(unscaled, prompt, response) - response_logits(models["llama"].hf, prompt, response)
    assert float(difference.abs().max()) > 0.1


def bf16_logprobs_on_rank(model: TinyModel, layout: Layout) -> Tensor | None:
    config = ranks.actor_config(layout, bf16=True)
    worker = ranks.make_worker(model, config)
    assert {parameter.dtype for chunk in worker.chunks for parameter in chunk.parameters()} == {torch.bfloat16}
    return worker.logprobs(ranks.share_of(make_sequences(model.vocab_size), config), TEMPERATURE)


@pytest.mark.parametrize("name", ["tp1", "tp2"])
def test_bf16_is_as_close_to_fp32_as_hugging_face_in_bf16(name: str, models: dict[str, TinyModel]) -> None:
    layout, model = LAYOUTS[name], models["qwen3"]
    sequences = in_share_order(model, ranks.actor_config(layout))
    with torch.no_grad():
        exact, _ = response_logprobs(model.hf, sequences, TEMPERATURE)
        rounded, _ = response_logprobs(copy.deepcopy(model.hf).bfloat16(), sequences, TEMPERATURE)
    (ours,) = [answer for answer in run_ranks(layout, 1, bf16_logprobs_on_rank, model, layout) if answer is not None]
    theirs = float((rounded.float() - exact).abs().mean())
    assert 0 < float((ours - exact).abs().mean()) < 1.5 * theirs
