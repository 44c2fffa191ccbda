"""Recorded numbers of public implementations, and how tests read them."""

import json
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).parent


def load_cases(topic: str) -> list[dict[str, Any]]:
    """Return the cases of ``<topic>.json``, each with id, inputs, expected, rtol and atol."""
    return json.loads((_HERE / f"{topic}.json").read_text())["cases"]


def tensor(values: Any) -> torch.Tensor:
    """Turn nested lists, in which 'nan', 'inf' and '-inf' are strings, into an fp64 tensor."""
    return torch.tensor(_numbers(values), dtype=torch.float64)


def _numbers(values: Any) -> Any:
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return float(values) if isinstance(values, str) else values


def close(case: dict[str, Any], actual: torch.Tensor | float, expected: Any) -> bool:
    """Compare within the tolerances of the case, ignoring shape (ours is flat) and the sign of zero."""
    actual = torch.as_tensor(actual, dtype=torch.float64).flatten()
    return torch.allclose(actual, tensor(expected).flatten(), rtol=case["rtol"], atol=case["atol"], equal_nan=True)


def assert_close(case: dict[str, Any], actual: torch.Tensor | float, expected: Any) -> None:
    """Fail with both sides when they differ by more than the case's tolerances."""
    assert close(case, actual, expected), f"{case['id']}: ours {actual}, recorded {expected}"
