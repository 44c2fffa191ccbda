"""The parts of the sampler that need no ranks."""

import pytest
import torch
from transformers import TopPLogitsWarper

from mindllm.rollout.sampler import _inverse_cdf, _keep_nucleus


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.5, 0.9, 0.999])
def test_the_nucleus_is_that_of_hugging_face(top_p: float) -> None:
    scores = torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    scores[::3, :20] = -torch.inf  # cut by an earlier filter
    theirs = TopPLogitsWarper(top_p)(None, scores.clone())
    assert torch.equal(_keep_nucleus(scores, top_p), theirs)


def test_the_nucleus_keeps_the_most_likely_token_and_the_one_that_reaches_the_mass() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    assert _keep_nucleus(scores, 0.01).isfinite().tolist() == [[True, False, False, False]]
    assert _keep_nucleus(scores, 0.5).isfinite().tolist() == [[True, False, False, False]]
    assert _keep_nucleus(scores, 0.51).isfinite().tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(
    ("target", "column"),
    [(0.0, 1), (0.2, 1), (0.25, 3), (0.9, 3), (1.0, 3), (1.5, 3), (-1e-17, 1)],
)
def test_a_column_of_no_weight_is_never_drawn(target: float, column: int) -> None:
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]], dtype=torch.float64)
    drawn = _inverse_cdf(weights.cumsum(-1), weights, torch.tensor([target], dtype=torch.float64))
    assert drawn.tolist() == [column]
