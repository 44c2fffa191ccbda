"""Invariant 1 for a reward model in training: pairs stay together, and nothing else about the division matters."""

import pytest
import torch

from mindllm.data.sequences import Sequences
from mindllm.workers.dispatch import BatchLimits, Scatter
from tests.distributed import scalar_updates
from tests.distributed.models import TinyModel


def make_pairs(model: TinyModel) -> Sequences:
    """Seven pairs of very different lengths, so that neither ranks nor micro-batches divide them evenly; margins."""
    generator = torch.Generator().manual_seed(11)

    def ids(count: int) -> list[int]:
        return torch.randint(model.vocab_size, (count,), generator=generator).tolist()

    lengths = [(3, 9), (30, 2), (1, 1), (12, 40), (7, 7), (25, 18), (5, 33)]
    texts = [ids(length) for pair in lengths for length in pair]
    # as stages/orm.py builds them: all but the last token is the prompt
    batch = Sequences.from_lists([text[:-1] or [1] for text in texts], [text[-1:] for text in texts])
    margins = torch.rand(len(lengths), generator=generator).double()
    batch.margins = torch.stack([margins, torch.full_like(margins, 99.0)], dim=1).flatten()  # the second is not read
    return batch


@pytest.fixture(scope="module")
def batches(scalar_models: dict[str, TinyModel]) -> list[Sequences]:
    return [make_pairs(model) for model in scalar_models.values()]


@pytest.fixture(scope="module")
def expected(scalar_models: dict[str, TinyModel], batches: list[Sequences]) -> list[scalar_updates.Expected]:
    pairs = zip(scalar_models.values(), batches, strict=True)
    return [scalar_updates.expected_update("pairs", model, batch) for model, batch in pairs]


@pytest.mark.parametrize("name", scalar_updates.LAYOUTS)
def test_the_pairwise_update_equals_that_of_hugging_face_and_torch(
    name: str,
    scalar_models: dict[str, TinyModel],
    batches: list[Sequences],
    expected: list[scalar_updates.Expected],
) -> None:
    scalar_updates.check_layout(name, "pairs", list(scalar_models.values()), batches, expected)


@pytest.mark.parametrize("max_sequences", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("data_parallel", [1, 2, 3])
def test_a_pair_is_never_divided(data_parallel: int, max_sequences: int | None, scalar_models: dict) -> None:
    batch = make_pairs(scalar_models["qwen2"])
    batch.sample_index = torch.arange(len(batch))
    shares = Scatter(batch, BatchLimits(data_parallel, 48, max_sequences, 1), unit=2).shares
    seen = []
    for share in shares:
        for micro_batch in share.micro_batches():
            members = micro_batch.sample_index.view(-1, 2)
            assert torch.equal(members[:, 0] + 1, members[:, 1]) and not bool((members[:, 0] % 2).any())
            seen += members.flatten().tolist()
    assert sorted(seen) == list(range(len(batch)))
