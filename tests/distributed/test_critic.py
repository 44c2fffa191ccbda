"""Invariant 1 for the critic: its update does not depend on how model and batch are divided."""

import pytest
import torch

from mindllm.data.sequences import Sequences
from tests.distributed import scalar_updates, scalars
from tests.distributed.models import TinyModel


def make_batch(model: TinyModel) -> Sequences:
    """Ragged responses, one of them empty, some tokens masked (their returns NaN), some values beyond the clip."""
    generator = torch.Generator().manual_seed(9)

    def ids(count: int) -> list[int]:
        return torch.randint(model.vocab_size, (count,), generator=generator).tolist()

    lengths = [(1, 9), (17, 4), (6, 0), (9, 22), (3, 1), (12, 13), (5, 5), (8, 11)]
    batch = Sequences.from_lists([ids(p) for p, _ in lengths], [ids(r) for _, r in lengths])
    count = batch.num_response_tokens
    with torch.no_grad():
        values = scalars.action_values(model.hf, batch)
    batch.loss_mask = torch.rand(count, generator=generator) > 0.15
    batch.values = values + torch.randn(count, generator=generator) * 0.5
    returns = values + torch.randn(count, generator=generator)
    batch.returns = torch.where(batch.loss_mask, returns, torch.nan)
    return batch


@pytest.fixture(scope="module")
def batches(scalar_models: dict[str, TinyModel]) -> list[Sequences]:
    return [make_batch(model) for model in scalar_models.values()]


@pytest.fixture(scope="module")
def expected(scalar_models: dict[str, TinyModel], batches: list[Sequences]) -> list[scalar_updates.Expected]:
    pairs = zip(scalar_models.values(), batches, strict=True)
    return [scalar_updates.expected_update("value", model, batch) for model, batch in pairs]


def test_some_but_not_all_values_of_the_batch_are_clipped(expected: list[scalar_updates.Expected]) -> None:
    assert all(0.1 < truth.terms["vf_clipfrac"] < 0.9 for truth in expected)


@pytest.mark.parametrize("name", scalar_updates.LAYOUTS)
def test_the_critics_update_equals_that_of_hugging_face_and_torch(
    name: str,
    scalar_models: dict[str, TinyModel],
    batches: list[Sequences],
    expected: list[scalar_updates.Expected],
) -> None:
    scalar_updates.check_layout(name, "value", list(scalar_models.values()), batches, expected)
