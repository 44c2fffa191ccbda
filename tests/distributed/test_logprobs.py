"""Log-probs, entropies and their gradients from vocabulary shards, against recorded numbers and plain torch."""

import pytest
import torch
from torch import Tensor

from mindllm.parallel.groups import coordinates
from mindllm.parallel.logprobs import vocab_parallel_logprobs
from tests.distributed import ranks
from tests.distributed.pool import run_ranks
from tests.vectors import load_cases, tensor

# The cases are recorded in fp64; ours computes in fp32, whose rounding at these magnitudes is below this.
FP32 = {"rtol": 1e-6, "atol": 1e-6}
GARBAGE = 37.0  # in the padding columns: it must not count


def on_rank(
    logits: Tensor, targets: Tensor, weights: tuple[Tensor, Tensor], temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies, and the gradient of their weighted sum in this rank's columns."""
    place, vocab_size = coordinates(), logits.shape[1]
    width = -(-vocab_size // ranks.TP2.tensor)
    if torch.distributed.get_world_size() == 1:
        width = vocab_size
    padded = torch.nn.functional.pad(
        logits, (0, width * torch.distributed.get_world_size() - vocab_size), value=GARBAGE
    )
    local = padded[:, place.tensor_rank * width : (place.tensor_rank + 1) * width].clone().requires_grad_()
    kept_targets = targets.clone()
    logprobs, entropies = vocab_parallel_logprobs(local, targets, vocab_size, temperature)
    ((logprobs * weights[0]).sum() + (entropies * weights[1]).sum()).backward()
    assert torch.equal(targets, kept_targets)
    return logprobs.detach(), entropies.detach(), local.grad


def compute(
    layout: ranks.Layout, logits: Tensor, targets: Tensor, weights: tuple[Tensor, Tensor], temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The common values of all ranks, and the gradient [rows, vocabulary] put together; padding has none."""
    answers = run_ranks(layout, 1, on_rank, logits, targets, weights, temperature)
    for logprobs, entropies, _ in answers:
        assert torch.equal(logprobs, answers[0][0]) and torch.equal(entropies, answers[0][1])
    gradient = torch.cat([grad for *_, grad in answers], dim=1)
    assert not bool(gradient[:, logits.shape[1] :].any())
    return answers[0][0], answers[0][1], gradient[:, : logits.shape[1]]


@pytest.mark.parametrize("layout", [ranks.TP1, ranks.TP2], ids=["tp1", "tp2"])
def test_values_and_gradients_equal_the_recorded_ones(layout: ranks.Layout) -> None:
    seen = 0
    for case in load_cases("entropy_logprob"):
        if "mask" in case["inputs"]:  # aggregations, which are tested where they live
            continue
        logits = tensor(case["inputs"]["logits"]).float().flatten(0, 1)
        labels = torch.tensor(case["inputs"].get("labels", [0] * len(logits))).flatten()
        ones, zeros = torch.ones(len(logits)), torch.zeros(len(logits))
        is_entropy = "entropy" in case["expected"]
        weights = (zeros, ones) if is_entropy else (ones, zeros)
        logprobs, entropies, gradient = compute(layout, logits, labels, weights)
        expected = tensor(case["expected"]["entropy" if is_entropy else "logprobs"]).float().flatten()
        torch.testing.assert_close(entropies if is_entropy else logprobs, expected, **FP32)
        if "grad_sum_wrt_logits" in case["expected"]:
            expected = tensor(case["expected"]["grad_sum_wrt_logits"]).float().flatten(0, 1)
            torch.testing.assert_close(gradient, expected, **FP32)
        seen += 1
    assert seen == 3


@pytest.mark.parametrize("layout", [ranks.TP1, ranks.TP2], ids=["tp1", "tp2"])
def test_every_token_id_scores_as_in_plain_torch(layout: ranks.Layout) -> None:
    vocab_size, temperature = 13, 0.6
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(vocab_size, vocab_size, generator=generator) * 6
    logits[3, 5] = -torch.inf  # a token that cannot occur
    targets = torch.arange(vocab_size)
    weights = tuple(torch.randn(2, vocab_size, generator=generator).unbind())
    ours = compute(layout, logits, targets, weights, temperature)

    reference = logits.double().requires_grad_()
    scores = (reference / temperature).log_softmax(-1)
    logprobs = scores[targets, targets]
    entropies = torch.special.entr(scores.exp()).sum(-1)
    finite = [row for row in range(vocab_size) if row != 3]
    total = (logprobs * weights[0]).sum() + (entropies[finite] * weights[1][finite]).sum()
    gradient = torch.autograd.grad(total, reference, retain_graph=True)[0]
    torch.testing.assert_close(ours[0], logprobs.detach().float(), **FP32)
    torch.testing.assert_close(ours[1], entropies.detach().float(), **FP32)
    torch.testing.assert_close(ours[2][finite], gradient[finite].float(), **FP32)
    assert bool(ours[2][3].isfinite().all()) and float(ours[2][3, 5]) == 0.0


@pytest.mark.parametrize("layout", [ranks.TP1, ranks.TP2], ids=["tp1", "tp2"])
def test_no_rows_give_no_values_and_no_gradient(layout: ranks.Layout) -> None:
    nothing = torch.empty(0)
    logprobs, entropies, gradient = compute(
        layout, torch.empty(0, 5), torch.empty(0, dtype=torch.int64), (nothing, nothing)
    )
    assert logprobs.shape == entropies.shape == (0,) and gradient.shape == (0, 5)
