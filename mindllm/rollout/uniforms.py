"""Uniform numbers that belong to a token's identity, not to the order in which tokens are drawn."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 finaliser (Steele, Lea and Flood, 2014): a bijection with full avalanche."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_A
    state = (state ^ (state >> np.uint64(27))) * _MIX_B
    return state ^ (state >> np.uint64(31))


def token_uniforms(
    seed: int,
    iteration: int,
    prompt_index: NDArray[np.int64],
    sample_index: NDArray[np.int64],
    position: NDArray[np.int64],
) -> NDArray[np.float64]:
    """One number in (0, 1) per token; equal identities give equal numbers on every rank, layout and restart.

    Args:
        seed, iteration: of the run and of the generation call.
        prompt_index, sample_index, position: [n] data set row, number of the response, index within the response.

    Returns:
        [n] float64, multiples of 2**-53 shifted by half a step, so neither 0 nor 1 occurs.
    """
    with np.errstate(over="ignore"):
        state = np.full(prompt_index.shape, seed, dtype=np.uint64)
        for part in (np.full_like(prompt_index, iteration), prompt_index, sample_index, position):
            state = _mix(state + _GOLDEN + part.astype(np.uint64) * _MIX_A)
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
