import pytest
import torch

from mindllm.algorithms import AGGREGATIONS, aggregate, masked_sum, token_weights
from tests.vectors import assert_close, load_cases, tensor

LEFT_OUT = {"agg_verl_token-sum_fullrow": "a plain sum grows with the batch and is not offered"}
CASES = [case for case in load_cases("aggregation") if case["id"] not in LEFT_OUT]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_weighted_sums_equal_the_recorded_aggregations(case):
    inputs = case["inputs"]
    rows, width = len(inputs["mask"]), len(inputs["mask"][0])
    mask = tensor(inputs["mask"]).flatten().bool()
    weights = token_weights(mask, torch.full((rows,), width), inputs["agg"], max_length=width)
    out = aggregate(tensor(inputs["loss"]).flatten(), mask, 1, weights)
    relative = 1e-8 if inputs["agg"] == "seq-mean-token-mean" else case["rtol"]  # there 1e-8 is added to each count
    assert_close(case | {"rtol": relative}, out, case["expected"]["out"])


def test_every_left_out_case_exists():
    assert set(LEFT_OUT) <= {case["id"] for case in load_cases("aggregation")}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_add_up_to_the_whole_however_the_sequences_are_dealt(aggregation):
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 0, 5, 1, 4]
    values = torch.randn(13, dtype=torch.float64, generator=generator).split(lengths)
    masks = (torch.rand(13, generator=generator) < 0.6).split(lengths)
    weights = token_weights(torch.cat(masks), torch.tensor(lengths), aggregation, max_length=8)
    whole = aggregate(torch.cat(values), torch.cat(masks), 1, weights)
    parts = 0.0
    for members in ([4, 1], [0], [2, 3]):
        of_part = [weights.split(lengths)[i] for i in members]
        parts += aggregate(
            torch.cat([values[i] for i in members]), torch.cat([masks[i] for i in members]), 1, torch.cat(of_part)
        )
    torch.testing.assert_close(parts, whole)


def test_sequences_of_equal_length_weigh_the_same_in_every_mean():
    mask = torch.ones(6, dtype=torch.bool)
    for aggregation in ("token-mean", "seq-mean-token-mean"):
        weights = token_weights(mask, torch.tensor([3, 3]), aggregation, max_length=3)
        torch.testing.assert_close(weights, torch.full((6,), 1 / 6, dtype=torch.float64))


def test_the_weights_of_a_mean_sum_to_one_and_masked_tokens_weigh_nothing():
    mask = torch.tensor([True, False, True, True, False, False])
    for aggregation in ("token-mean", "seq-mean-token-mean"):
        weights = token_weights(mask, torch.tensor([3, 1, 2, 0]), aggregation, max_length=3)
        assert masked_sum(weights, mask).item() == pytest.approx(1.0)
        assert weights[~mask].tolist() == [0.0] * 3


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_to_train_on_weighs_nothing(aggregation):
    weights = token_weights(torch.zeros(2, dtype=torch.bool), torch.tensor([2, 0]), aggregation, max_length=3)
    assert weights.tolist() == [0.0, 0.0]


def test_wrong_shapes_and_names_are_refused():
    mask = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        token_weights(mask, torch.tensor([2]), "mean", max_length=2)
    with pytest.raises(ValueError, match=r"sum\(lengths\) = 3"):
        token_weights(mask, torch.tensor([3]), "token-mean", max_length=3)
    with pytest.raises(ValueError, match="max_length must be positive"):
        token_weights(mask, torch.tensor([2]), "token-mean", max_length=0)
    with pytest.raises(ValueError, match="flat and of one length"):
        aggregate(torch.zeros(2), mask, 1, torch.zeros(1))
