"""Memory of a series, and blocks that are long against it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.blocks import block_means, block_seconds, correlation_steps


def remembering(share: float, count: int, seed: int = 1) -> list[float]:
    """Values of which each keeps a share of the one before: memory (1 + share) / (1 - share)."""
    source, value, found = random.Random(seed), 0.0, []
    for _ in range(count):
        value = share * value + source.gauss(0, 1)
        found.append(value)
    return found


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_memory_is_that_of_the_process(share: float) -> None:
    expected = (1 + share) / (1 - share)
    assert correlation_steps(remembering(share, 6000)) == pytest.approx(expected, rel=0.25)


def test_block_means_of_that_length_have_hardly_any_memory_left() -> None:
    series = remembering(0.9, 20_000)
    steps = round(block_seconds(series, 1.0))
    assert 30 <= steps <= 50
    assert correlation_steps(block_means(series, steps)) < 1.6


def test_blocks_are_never_shorter_than_a_few_scrapes() -> None:
    assert block_seconds([1.0, 1.0, 1.0], 0.1) == 10
    assert block_seconds(remembering(0.0, 500), 0.1) == 10


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50))
def test_memory_is_at_least_a_step(series: list[float]) -> None:
    assert 1 <= correlation_steps(series) <= len(series)


def test_whole_blocks_only() -> None:
    assert block_means([1.0, 3.0, 5.0, 7.0, 100.0], 2) == [2.0, 6.0]


def test_too_little_is_refused() -> None:
    with pytest.raises(JudgeError, match="at least 2 values, got 1"):
        correlation_steps([1.0])
    with pytest.raises(JudgeError, match="steps: expected at least 1, got 0"):
        block_means([1.0], 0)
