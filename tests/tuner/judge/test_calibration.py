"""Arms with equal settings."""

import random

import pytest

from kvserving_tuner.judge import Comparison, arms_differ, calibration, relative_rise


def run(mean: float, seed: int = 3) -> Comparison:
    source = random.Random(seed)
    blocks = [source.gauss(mean, 0.05) for _ in range(300)]
    return calibration(relative_rise("ttft", 10)).add(blocks)


@pytest.mark.parametrize("mean", [-0.04, 0.04])
def test_arms_that_differ_by_themselves_are_found(mean: float) -> None:
    assert arms_differ(run(mean))


def test_equal_arms_are_seldom_called_different() -> None:
    assert sum(arms_differ(run(0.0, seed)) for seed in range(60)) <= 2
