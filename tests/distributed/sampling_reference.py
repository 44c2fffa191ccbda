"""What every sampled token should have been: transformers' logits and filters, and an inverse CDF in fp64."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from mindllm.data.sequences import Sequences
from mindllm.rollout import SamplingParams
from mindllm.rollout.uniforms import token_uniforms
from tests.distributed.reference import response_logits

EDGE = 1e-6


@dataclass
class Verdict:
    """Tokens compared, and those that differ from the expectation but whose uniform lies on an edge of the CDF."""

    tokens: int = 0
    excused: int = 0


def filtered_scores(logits: Tensor, prompt: list[int], response: list[int], params: SamplingParams) -> Tensor:
    """[response tokens, vocabulary] scores at the temperature after transformers' processors, -inf where cut."""
    filters = LogitsProcessorList()
    if params.min_new_tokens:
        stops = list(params.stop_token_ids)
        filters.append(MinNewTokensLengthLogitsProcessor(len(prompt), params.min_new_tokens, stops, device="cpu"))
    if params.top_k > 0:
        filters.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        filters.append(TopPLogitsWarper(params.top_p))
    rows = []
    for position, row in enumerate(logits.double() / params.temperature):
        ids = torch.tensor([prompt + response[:position]])
        rows.append(filters(ids, row[None].clone())[0])
    return torch.stack(rows)


@torch.no_grad()
def check_tokens(model: torch.nn.Module, sequences: Sequences, params: SamplingParams) -> Verdict:
    """Assert that each response token is the inverse CDF of its own uniform, given the tokens before it."""
    verdict = Verdict()
    for number, (prompt, response) in enumerate(sequences.token_lists()):
        if not response:
            continue
        scores = filtered_scores(response_logits(model, prompt, response), prompt, response, params)
        cdf = scores.softmax(-1).cumsum(-1).numpy()
        positions = np.arange(len(response), dtype=np.int64)
        uniforms = token_uniforms(
            params.seed,
            params.iteration,
            np.full_like(positions, int(sequences.prompt_index[number])),
            np.full_like(positions, int(sequences.sample_index[number])),
            positions,
        )
        for position, token in enumerate(response):
            verdict.tokens += 1
            expected = int(np.searchsorted(cdf[position], uniforms[position], side="right"))
            if token != expected:
                distance = float(np.abs(cdf[position] - uniforms[position]).min())
                assert distance < EDGE, f"sequence {number}, position {position}: drew {token}, expected {expected}"
                verdict.excused += 1
    return verdict
