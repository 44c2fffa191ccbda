"""Arrays of dtypes that numpy does not have are torch's tensors, bit for bit."""

import numpy as np
import pytest
import torch

from mindllm.formats.arrays import DTYPES, cast, from_torch, is_finite, name_of, raw, same_bits, to_torch


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_to_torch_and_back(name: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    array = from_torch(tensor)
    assert name_of(array.dtype) == name and array.shape == (2, 3)
    assert to_torch(array).dtype == tensor.dtype and torch.equal(to_torch(array).float(), tensor.float())
    assert bytes(raw(array)) == bytes(tensor.reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_a_cast_rounds_as_torch_does(name: str) -> None:
    tensor = torch.randn(100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(to_torch(cast(tensor.numpy(), DTYPES[name])), tensor.to(getattr(torch, name)))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_are_found_in_every_dtype(name: str, bad: float) -> None:
    largest = torch.finfo(getattr(torch, name)).max
    good = torch.tensor([0.0, -largest, largest, 1e-7]).to(getattr(torch, name))
    assert is_finite(from_torch(good))
    good[2] = bad
    assert not is_finite(from_torch(good))


def test_bits_are_compared_not_values() -> None:
    first = np.array([np.nan, 0.0], np.float32)
    assert same_bits(first, first.copy())
    assert not same_bits(first, np.array([np.nan, -0.0], np.float32))
    assert not same_bits(first, first.view(np.int32))
