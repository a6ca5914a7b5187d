"""Intervals that hold the mean at all times together."""

import math
import random

import pytest

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.interval import STAKES, MeanInterval, Sums


def log_wealth(xs: list[float], mean: float, stake: float) -> float:
    """What a gambler on `the mean of xs is below mean` has, number by number; xs in [0, 1]."""
    return math.fsum(math.log1p(stake * (mean - x) / (1 - mean)) for x in xs)


@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (0.3, 0.3), (40, 60)])
def test_its_ends_are_means_at_which_a_real_gambler_is_rich(shape: tuple[float, float]) -> None:
    source = random.Random(3)
    intervals, rich = MeanInterval(0.0, 1.0, 0.05), math.log(len(STAKES) / 0.025)
    for count in (30, 120, 1000):
        xs = [source.betavariate(*shape) for _ in range(count)]
        found = intervals.of(intervals.add(Sums(), xs))
        assert found.low < math.fsum(xs) / count < found.high
        if found.high < 1:
            assert max(log_wealth(xs, found.high, stake) for stake in STAKES) >= rich - 1e-9
        if found.low > 0:
            mirrored = [1 - x for x in xs]
            assert (
                max(log_wealth(mirrored, 1 - found.low, stake) for stake in STAKES) >= rich - 1e-9
            )
        assert count < 1000 or found.high - found.low < 0.25


def test_order_does_not_matter_and_numbers_may_come_in_parts() -> None:
    source, intervals = random.Random(4), MeanInterval(-1.0, 2.0, 0.1)
    xs = [source.gauss(0.2, 0.4) for _ in range(60)]
    whole = intervals.of(intervals.add(Sums(), xs))
    parts = intervals.add(intervals.add(Sums(), xs[:7]), xs[7:])
    backwards = intervals.of(intervals.add(Sums(), reversed(xs)))
    for other in (intervals.of(parts), backwards):
        assert (other.low, other.high) == pytest.approx((whole.low, whole.high), abs=1e-12)


def test_it_is_mirrored_with_its_numbers() -> None:
    source, intervals = random.Random(6), MeanInterval(-1.0, 1.0, 0.05)
    xs = [source.betavariate(2, 3) for _ in range(80)]
    found = intervals.of(intervals.add(Sums(), xs))
    mirrored = intervals.of(intervals.add(Sums(), [-x for x in xs]))
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low), abs=1e-12)


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [((-1.0, 0.0, 1.0), (0.1, 0.7, 0.2), 0.1), ((-1.0, 1.0), (0.98, 0.02), -0.96)],
)
def test_the_mean_is_inside_at_every_look(
    values: tuple[float, ...], weights: tuple[float, ...], mean: float
) -> None:
    source, intervals, missed = random.Random(5), MeanInterval(-1.0, 1.0, 0.1), 0
    for _ in range(200):
        sums, outside = Sums(), False
        for _ in range(150):
            sums = intervals.add(sums, source.choices(values, weights))
            found = intervals.of(sums)
            outside |= not found.low <= mean <= found.high
        missed += outside
    assert missed <= 20


def test_it_narrows_around_numbers_that_vary_little() -> None:
    intervals = MeanInterval(-0.25, 0.27, 0.05)
    source = random.Random(5)
    xs = [source.gauss(0.01, 0.01) for _ in range(2000)]
    for count, width in ((100, 0.04), (2000, 0.004)):
        found = intervals.of(intervals.add(Sums(), xs[:count]))
        assert found.low < 0.01 < found.high
        assert found.high - found.low < width


def test_nothing_seen_is_everything_possible() -> None:
    found = MeanInterval(-0.5, 1.0, 0.05).of(Sums())
    assert (found.low, found.high) == (-0.5, 1.0)


@pytest.mark.parametrize("end", [-0.5, 1.0])
def test_numbers_at_an_end_of_the_range_keep_that_end(end: float) -> None:
    intervals = MeanInterval(-0.5, 1.0, 0.05)
    found = intervals.of(intervals.add(Sums(), [end] * 500))
    assert found.low <= end <= found.high
    assert found.high - found.low < 0.1


def test_bounds_and_numbers_are_checked() -> None:
    with pytest.raises(JudgeError, match="high: expected more than low"):
        MeanInterval(1.0, 1.0, 0.05)
    with pytest.raises(JudgeError, match="alpha: expected a number between 0 and 1, got 2"):
        MeanInterval(0.0, 1.0, 2)
    with pytest.raises(JudgeError, match="got NaN"):
        MeanInterval(0.0, 1.0, 0.05).add(Sums(), [math.nan])
