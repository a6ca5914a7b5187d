"""What is measured of a pair or a block, and which mean of it is still accepted.

A criterion turns what a policy says in percent into a bound on a mean, and what was measured into
numbers of that mean: rises are bad. Each holds for one probe and one stratum, or for one guard.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.betting import Stakes
from kvserving_tuner.judge.shares import most_of

MOST_RISE_NATS: Final = 0.25
"""Largest change of a prompt's mean negative log-likelihood that counts as itself, in nats per
token: 28 % of perplexity. Beyond it a rise forbids a pass, and a fall counts as this much."""

MOST_FALL: Final = 0.5
"""Largest relative improvement of a block that counts as itself: the stable arm is three times as
large."""

REQUESTS: Final = "share of requests"
"""Unit of criteria that count requests which went wrong."""

LATE: Final = "share late"
"""Unit of criteria that count requests which missed a target of latency."""

MISSED: Final = "share missed"
"""Unit of criteria that have an absolute limit and no other arm."""

LOAD_TOLERANCE: Final = 0.1
"""Arms whose replicas have loads within this share of each other are compared."""

SMALL_DROP: Final = 0.055
"""Drop in quality that bets are made for where the bound is below it: a little more than the five
points that a trial has to find."""

FLOOR_DROP: Final = 0.1
"""Distance below a floor that bets are made for: of 5 points it takes as few grades as a bet on 5,
and of 10 to 20 a third less."""

LEAST_EFFECT: Final = 0.03
"""Least distance from the bound that bets are made for: smaller ones take more pairs than any probe
set has."""

BLOCK_EFFECT: Final = 0.05
"""Relative difference of blocks that bets are made for: 10 % more or less."""

SCORES_SQUARE, NARROW_SQUARE = 0.25, 0.02
"""Expected mean squares: of scores, which agree or differ by all there is, and of numbers that
scatter little against their range, as likelihoods and blocks do."""

GAIN: Final = "goodput gain"
"""Unit of what has to be shown rather than kept: percent more than without the change."""


@dataclass(frozen=True)
class Criterion:
    """One mean that is judged: numbers lie between `low` and `high`, and `bound` is accepted."""

    name: str
    unit: str
    bound: float
    low: float
    high: float
    harm: Stakes
    """How to bet that the mean is above the bound, and with `safety` that it is below."""
    safety: Stakes


def likelihood(name: str, max_drop_percent: float) -> Criterion:
    """Paired rise of the mean negative log-likelihood of a prompt, in nats per token.

    A mean rise of d nats is a drop of 100 (exp(d) - 1) percent.
    """
    bound = math.log1p(_percent(max_drop_percent) / 100)
    harm, safety = _narrow(_beyond(bound)), _narrow(_within(bound))
    most = MOST_RISE_NATS + bound
    return Criterion(name, "nats per token", bound, -MOST_RISE_NATS, most, harm, safety)


def task(name: str, max_drop_percent: float) -> Criterion:
    """Paired fall of a score between 0 and 1; the drop is in percentage points."""
    bound = _percent(max_drop_percent) / 100
    harm = Stakes(_beyond(bound), SCORES_SQUARE, steady=0.3)
    # Scores of equal arms that often differ have no large effect to show, so one gambler has most.
    safety = Stakes(_within(bound), SCORES_SQUARE, steady=0.8)
    return Criterion(name, "score", bound, -1.0, 1.0, harm, safety)


def floor(name: str, least_percent: float) -> Criterion:
    """What a grade between 0 and 1 lacks of 1, against a least mean grade in percent."""
    if not 0 < least_percent < 100:
        raise JudgeError(f"least_percent: expected more than 0 and below 100, got {least_percent}")
    bound = 1 - least_percent / 100
    # Near a high floor most can be won by a bet and little lost, so that its square is large.
    missed = min(bound + FLOOR_DROP, 1.0)
    square = (missed * (1 - bound) ** 2 + (1 - missed) * bound**2) / bound**2
    harm = Stakes(FLOOR_DROP, square, steady=0.6)
    return Criterion(
        name, MISSED, bound, 0.0, 1.0, harm, Stakes(SMALL_DROP, SCORES_SQUARE, steady=0.6)
    )


def relative_rise(name: str, max_increase_percent: float) -> Criterion:
    """Relative rise of a quantity in blocks of time, as `symmetric` tells it."""
    growth = _percent(max_increase_percent) / 100
    return _of_blocks(name, "relative difference", growth / (2 + growth), -MOST_FALL)


def share_rise(name: str, max_increase: float) -> Criterion:
    """Rise of a share of requests in blocks of time, as `share_difference` tells it."""
    if not 0 <= max_increase < 1:
        raise JudgeError(f"max_increase: expected a share from 0 to below 1, got {max_increase}")
    most, stakes = most_of(max_increase), _narrow(BLOCK_EFFECT)
    return Criterion(name, REQUESTS, max_increase, -most, most, stakes, stakes)


def target_missed(name: str, allowed: float) -> Criterion:
    """Share of requests that miss a target of latency in blocks, as `share_missed` tells it.

    `allowed` is the share that the target's percentile leaves.
    """
    if not 0 <= allowed < 1:
        raise JudgeError(f"allowed: expected a share from 0 to below 1, got {allowed}")
    most, stakes = most_of(allowed), _narrow(BLOCK_EFFECT)
    return Criterion(name, LATE, allowed, allowed - most, most, stakes, stakes)


def goodput_loss(name: str, least_ratio: float) -> Criterion:
    """Relative loss of goodput in blocks of time against a least ratio of candidate to stable."""
    return _of_blocks(name, "relative difference", _loss_bound(least_ratio), -1.0)


def goodput_gain(name: str, least_ratio: float) -> Criterion:
    """Gain in goodput in blocks of time, as `shortfall` tells it: safe is a ratio above the least.

    With a least ratio of 1 that is a gain; a move for capacity is content with 0.99.
    """
    return _of_blocks(name, GAIN, _loss_bound(least_ratio), -1.0)


def symmetric(candidate: float, stable: float) -> float:
    """Difference over sum: between -1 and 1, and 0 in the mean where arms are alike.

    A plain ratio is not: it is larger than 1 in the mean where the denominator is noisy.
    """
    if min(candidate, stable) < 0:
        raise JudgeError(f"expected quantities of at least 0, got {candidate} and {stable}")
    total = candidate + stable
    return (candidate - stable) / total if total else 0.0


def shortfall(candidate: float, stable: float, share: float) -> float:
    """What the candidate lacks of its part of what both arms did in a block of time.

    `candidate` and `stable` are totals of the arms, and `share` is the candidate's part of the
    engines. For arms of one size this is `symmetric(stable, candidate)`. For others a difference
    of means per engine would not be 0 in the mean where nothing differs, since the mean of few
    engines scatters more; the part of the total is, to second order, for engines that are alike.
    """
    if min(candidate, stable) < 0:
        raise JudgeError(f"expected quantities of at least 0, got {candidate} and {stable}")
    if not 0 < share < 1:
        raise JudgeError(f"share: expected between 0 and 1, got {share}")
    total = candidate + stable
    return (share - candidate / total) / (2 * share * (1 - share)) if total else 0.0


def drop_percent(criterion: Criterion, mean: float) -> float:
    """A mean as people read it, in percent or percentage points; a gain counts upwards."""
    if criterion.unit == "nats per token":
        return 100 * math.expm1(mean)
    if criterion.unit == "relative difference":
        return 200 * mean / (1 - mean) if mean < 1 else math.inf
    if criterion.unit == GAIN:
        return 100 * ((1 - mean) / (1 + mean) - 1) if mean > -1 else math.inf
    return 100 * mean


def loads_are_comparable(candidate: float, stable: float) -> bool:
    """Whether loads per replica are near enough to compare what the arms make of them."""
    return abs(candidate - stable) <= LOAD_TOLERANCE * max(candidate, stable)


def _of_blocks(name: str, unit: str, bound: float, low: float) -> Criterion:
    stakes = _narrow(max(bound, BLOCK_EFFECT))
    return Criterion(name, unit, bound, low, 1.0, stakes, stakes)


def _narrow(size: float) -> Stakes:
    return Stakes(size, NARROW_SQUARE, steady=0.6)


def _beyond(bound: float) -> float:
    return max(SMALL_DROP - bound, LEAST_EFFECT)


def _within(bound: float) -> float:
    return max(bound, LEAST_EFFECT / 3)


def _loss_bound(least_ratio: float) -> float:
    if not 0 < least_ratio <= 1:
        raise JudgeError(f"least_ratio: expected more than 0 and at most 1, got {least_ratio}")
    return (1 - least_ratio) / (1 + least_ratio)


def _percent(number: float) -> float:
    if not 0 <= number <= 1000:
        raise JudgeError(f"expected percent from 0 to 1000, got {number}")
    return number
