"""Tests of a mean that may be looked at all the time, against independent calculations."""

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.betting import (
    CALM_STAKE,
    LARGEST,
    PRIOR_COUNT,
    WILD_SQUARE,
    WILD_STAKE,
    Evidence,
    MeanTest,
    Stakes,
)

numbers = st.lists(st.floats(-1, 1), max_size=60)
Draw = Callable[[random.Random], float]


STAKES = Stakes(size=0.04, square=0.1, steady=0.4)


def capital(test: MeanTest, xs: list[Fraction]) -> Fraction:
    """Capital of both gamblers in exact arithmetic, each stake from all numbers before it."""
    bound, most = Fraction(test.bound), Fraction(test.bound) - Fraction(test.low)
    gains = [(max(x, Fraction(test.low)) - bound) / most for x in xs]
    steady, other = Fraction(test.stakes.steady), 1 - Fraction(test.stakes.steady)
    for place, gain in enumerate(gains):
        squares = sum((before * before for before in gains[:place]), Fraction(0))
        square = (PRIOR_COUNT * Fraction(test.stakes.square) + squares) / (PRIOR_COUNT + place)
        steady *= 1 + min(Fraction(test.stakes.size) / most / square, Fraction(LARGEST)) * gain
        other *= 1 + Fraction(CALM_STAKE if square < WILD_SQUARE else WILD_STAKE) * gain
    return steady + other


@given(st.lists(st.fractions(-2, 3, max_denominator=64), max_size=40))
def test_the_e_value_is_the_capital_of_both_gamblers(xs: list[Fraction]) -> None:
    test = MeanTest(0.25, -1.0, STAKES)
    found = test.add(test.start(), map(float, xs))
    assert found.e_value == pytest.approx(float(capital(test, xs)), rel=1e-9)
    assert found.count == len(xs)


def test_bets_are_fair_at_the_bound() -> None:
    # Over all ways that six fair coins at the bound can fall, the capital stays 1 in the mean.
    test, total = MeanTest(0.0, -1.0, STAKES), 0.0
    for way in range(64):
        coins = [1.0 if way >> coin & 1 else -1.0 for coin in range(6)]
        total += test.add(test.start(), coins).e_value
    assert total / 64 == pytest.approx(1, abs=1e-12)


def test_over_all_ways_that_pairs_can_fall_false_alarms_are_as_rare_as_promised() -> None:
    # All 6561 ways that eight pairs can fall, weighed by their exact chances at the bound of 0.2.
    test, chances = MeanTest(0.2, -1.0, STAKES), {1.0: 0.35, 0.0: 0.5, -1.0: 0.15}
    capital, alarms = 0.0, dict.fromkeys((0.1, 0.2, 0.4), 0.0)
    for way in itertools.product(chances, repeat=8):
        chance = math.prod(chances[number] for number in way)
        evidence = test.add(test.start(), way)
        capital += chance * evidence.e_value
        for alpha in alarms:
            alarms[alpha] += chance * evidence.rejects(alpha)
    assert capital == pytest.approx(1, abs=1e-12)
    assert all(0 < chance <= alpha for alpha, chance in alarms.items())


@given(numbers, numbers)
def test_one_by_one_or_at_once(first: list[float], second: list[float]) -> None:
    test = MeanTest(0.1, -1.0, STAKES)
    once = test.add(test.start(), [*first, *second])
    twice = test.add(test.add(test.start(), first), second)
    assert twice == once


@given(numbers)
def test_a_rejection_stays(xs: list[float]) -> None:
    test = MeanTest(0.0, -1.0, STAKES)
    rejected = test.add(test.start(), [1.0] * 60)
    assert rejected.rejects(0.001)
    assert test.add(rejected, xs).rejects(0.001)


@pytest.mark.parametrize(
    "draw",
    [
        lambda source: source.choice((-1.0, 1.0)),
        lambda source: source.choice((-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)),
        lambda source: source.gauss(0, 0.05),
        # Rarely a large number, often a small one, and 0 in the mean.
        lambda source: 0.9 if source.random() < 0.1 else -0.1,
    ],
    ids=["coins", "mostly-ties", "gauss", "skewed"],
)
def test_a_true_hypothesis_is_seldom_rejected_however_often_one_looks(draw: Draw) -> None:
    source, test, alpha, rejected = random.Random(7), MeanTest(0.0, -1.0, STAKES), 0.05, 0
    for _ in range(200):
        evidence = test.add(test.start(), [draw(source) for _ in range(400)])
        rejected += evidence.rejects(alpha)
    # A test that rejects 10 times in 200 on average exceeds this once in 20 times.
    assert rejected <= 15


def test_a_fixed_test_that_is_looked_at_all_the_time_does_worse() -> None:
    source, alarms = random.Random(7), 0
    for _ in range(100):
        total = squares = 0.0
        for count in range(1, 501):
            x = source.choice((-1.0, 1.0))
            total, squares = total + x, squares + x * x
            if count >= 30 and total / math.sqrt(squares) > 1.645:
                alarms += 1
                break
    assert alarms / 100 > 0.2


def test_effects_are_found() -> None:
    source, test = random.Random(7), MeanTest(0.0, -1.0, STAKES)
    xs = [source.choices((1.0, -1.0, 0.0), (0.21, 0.01, 0.78))[0] for _ in range(200)]
    assert test.add(test.start(), xs).rejects(0.01)


def test_what_is_below_the_limit_counts_as_the_limit() -> None:
    test = MeanTest(0.0, -0.5, STAKES)
    assert test.add(test.start(), [-5.0]) == test.add(test.start(), [-0.5])


def test_evidence_is_refused_where_it_is_none() -> None:
    test = MeanTest(0.0, -1.0, STAKES)
    with pytest.raises(JudgeError, match="got NaN"):
        test.add(test.start(), [0.1, math.nan])
    with pytest.raises(JudgeError, match="stakes: expected positive numbers"):
        MeanTest(0.0, -1.0, Stakes(size=0.0, square=0.1, steady=0.4))
    with pytest.raises(JudgeError, match="low: expected less than the bound"):
        MeanTest(0.0, 0.0, STAKES)


def test_evidence_without_numbers_is_one() -> None:
    evidence: Evidence = MeanTest(0.5, 0.0, STAKES).start()
    assert evidence.e_value == pytest.approx(1, abs=1e-12)
    assert (evidence.count, evidence.rejects(0.5)) == (0, False)
