"""Histograms say how much they know."""

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.histograms import Histogram, Interval, merge
from kvserving_tuner.readings import Unknown

EDGES = (0.1, 0.25, 0.5, math.inf)


def histogram(*counts: float, total: float = 0.0) -> Histogram:
    return Histogram(EDGES, counts, total)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.01, Interval(0.0, 0.1)),
        (0.5, Interval(0.0, 0.1)),
        (0.51, Interval(0.1, 0.25)),
        (0.9, Interval(0.1, 0.25)),
        (0.95, Interval(0.5, math.inf)),
        (1.0, Interval(0.5, math.inf)),
    ],
)
def test_a_percentile_is_the_bucket_that_holds_it(share: float, expected: Interval) -> None:
    assert histogram(5, 4, 0, 1).quantile(share) == expected


def test_the_share_above_a_limit_is_exact_at_an_edge_and_an_interval_elsewhere() -> None:
    some = histogram(5, 3, 1, 1)
    at_edge = some.share_above(0.25)
    assert isinstance(at_edge, Interval)
    assert at_edge.exact
    assert at_edge.lo == pytest.approx(0.2)
    assert some.share_above(0.3) == Interval(0.1, 0.2)
    assert some.share_above(0.0) == Interval(1.0, 1.0)
    assert some.share_above(9.0) == Interval(0.0, 0.1)


def test_nothing_observed_is_unknown_and_not_zero() -> None:
    empty = histogram(0, 0, 0, 0)
    for value in (empty.quantile(0.5), empty.share_above(0.1), empty.mean):
        assert isinstance(value, Unknown)


def test_merging_keeps_the_edges_that_all_have() -> None:
    finer = Histogram((0.05, 0.1, 0.5, math.inf), (1, 2, 3, 4), 5.0)
    merged = merge([histogram(10, 20, 30, 40, total=1.0), finer])
    assert merged == Histogram((0.1, 0.5, math.inf), (13, 53, 44), 6.0)
    assert isinstance(merge([]), Unknown)


def test_spread_of_lengths() -> None:
    edges = (100.0, 200.0, 500.0, math.inf)
    assert Histogram(edges, (0, 10, 0, 0), 1500).squared_variation() == pytest.approx(0.0)
    wide = Histogram(edges, (5, 0, 5, 0), 2000).squared_variation()
    # Middles 50 and 350: mean 200, deviation 150.
    assert wide == pytest.approx((150 / 200) ** 2)


counts = st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any)


@given(counts, st.floats(0.01, 1.0))
def test_a_percentile_interval_holds_the_true_value(found: list[int], share: float) -> None:
    # Values as the upper edge of each bucket: the largest that could have been counted there.
    values = [edge for edge, n in zip((0.1, 0.25, 0.5, 1.0), found, strict=True) for _ in range(n)]
    exact = values[math.ceil(share * len(values) - 1e-9) - 1]
    interval = histogram(*found).quantile(share)
    assert isinstance(interval, Interval)
    assert interval.lo < exact <= interval.hi


@given(counts, st.floats(0.0, 2.0))
def test_shares_are_ordered_and_between_zero_and_one(found: list[int], limit: float) -> None:
    share = histogram(*found).share_above(limit)
    assert isinstance(share, Interval)
    assert 0.0 <= share.lo <= share.hi <= 1.0


@given(counts, counts)
def test_merging_adds(one: list[int], two: list[int]) -> None:
    merged = merge([histogram(*one), histogram(*two)])
    assert isinstance(merged, Histogram)
    assert list(accumulate(merged.counts))[-1] == sum(one) + sum(two)
