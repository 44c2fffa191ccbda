"""Random numbers by identity."""

import numpy as np

from mindllm.rollout.uniforms import token_uniforms


def _draw(seed: int = 0, iteration: int = 0, count: int = 20000) -> np.ndarray:
    index = np.arange(count, dtype=np.int64)
    return token_uniforms(seed, iteration, index // 100, index % 10, (index // 10) % 10)


def test_a_number_depends_on_its_identity_and_not_on_the_batch_it_is_drawn_in() -> None:
    whole = _draw()
    part = np.array([7, 11, 4000], dtype=np.int64)
    alone = token_uniforms(0, 0, part // 100, part % 10, (part // 10) % 10)
    assert np.array_equal(whole[part], alone)


def test_every_part_of_the_identity_changes_the_number() -> None:
    base = np.ones(1, dtype=np.int64)
    numbers = {
        float(token_uniforms(*identity)[0])
        for identity in [
            (0, 1, base, base, base),
            (1, 1, base, base, base),
            (0, 2, base, base, base),
            (0, 1, base + 1, base, base),
            (0, 1, base, base + 1, base),
            (0, 1, base, base, base + 1),
        ]
    }
    assert len(numbers) == 6


def test_the_numbers_are_uniform_on_the_open_interval() -> None:
    numbers = _draw()
    assert 0 < numbers.min() and numbers.max() < 1
    assert len(np.unique(numbers)) == len(numbers)
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    chi_squared = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_squared < 43.8  # 0.1 % quantile at 19 degrees of freedom
    neighbours = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(neighbours) < 0.03
