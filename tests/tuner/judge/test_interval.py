"""Intervals that hold the mean at all times together."""

import math
import random

import pytest

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.interval import MeanInterval, Sums


def in_one_go(xs: list[float], alpha: float) -> tuple[float, float]:
    """Theorem 2 of Waudby-Smith and Ramdas for numbers in [0, 1], from all of them at once."""
    n = len(xs)
    means = [(0.5 + sum(xs[:t])) / (t + 1) for t in range(n + 1)]
    variances = [
        (0.25 + sum((xs[i] - means[i + 1]) ** 2 for i in range(t))) / (t + 1) for t in range(n)
    ]
    bets = [
        min(0.5, math.sqrt(2 * math.log(2 / alpha) / (v * t * math.log(1 + t))))
        for t, v in enumerate(variances, start=1)
    ]
    psi = [-math.log(1 - bet) - bet for bet in bets]
    spread = sum((x - m) ** 2 * p for x, m, p in zip(xs, means, psi, strict=False))
    center = sum(b * x for b, x in zip(bets, xs, strict=True)) / sum(bets)
    radius = (math.log(2 / alpha) + spread) / sum(bets)
    return max(0.0, center - radius), min(1.0, center + radius)


def test_sums_give_what_the_whole_sequence_gives() -> None:
    source = random.Random(3)
    xs = [source.betavariate(2, 5) for _ in range(120)]
    intervals = MeanInterval(0.0, 1.0, 0.05)
    found = intervals.of(intervals.add(Sums(), xs))
    assert (found.low, found.high) == pytest.approx(in_one_go(xs, 0.05), abs=1e-12)


def test_the_mean_is_inside_at_every_look() -> None:
    source, intervals, missed = random.Random(5), MeanInterval(-1.0, 1.0, 0.1), 0
    for _ in range(100):
        sums, outside = Sums(), False
        for _ in range(150):
            sums = intervals.add(sums, [source.choices((-1.0, 0.0, 1.0), (0.1, 0.7, 0.2))[0]])
            found = intervals.of(sums)
            outside |= not found.low <= 0.1 <= found.high
        missed += outside
    assert missed <= 10


def test_it_narrows_around_numbers_that_vary_little() -> None:
    intervals = MeanInterval(-0.25, 0.27, 0.05)
    source = random.Random(5)
    sums = intervals.add(Sums(), [source.gauss(0.01, 0.01) for _ in range(2000)])
    found = intervals.of(sums)
    assert found.low < 0.01 < found.high
    assert found.high - found.low < 0.01


def test_nothing_seen_is_everything_possible() -> None:
    found = MeanInterval(-0.5, 1.0, 0.05).of(Sums())
    assert (found.low, found.high) == (-0.5, 1.0)


def test_bounds_and_numbers_are_checked() -> None:
    with pytest.raises(JudgeError, match="high: expected more than low"):
        MeanInterval(1.0, 1.0, 0.05)
    with pytest.raises(JudgeError, match="alpha: expected a number between 0 and 1, got 2"):
        MeanInterval(0.0, 1.0, 2)
    with pytest.raises(JudgeError, match="got NaN"):
        MeanInterval(0.0, 1.0, 0.05).add(Sums(), [math.nan])
