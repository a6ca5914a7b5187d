"""What is measured of a pair or a block, and which mean of it is still accepted.

A criterion turns what a policy says in percent into a bound on a mean, and what was measured into
numbers of that mean: rises are bad. Each holds for one probe and one stratum, or for one guard.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import JudgeError

MOST_RISE_NATS: Final = 0.25
"""Largest change of a prompt's mean negative log-likelihood that counts as itself, in nats per
token: 28 % of perplexity. Beyond it a rise forbids a pass, and a fall counts as this much."""

MOST_FALL: Final = 0.5
"""Largest relative improvement of a block that counts as itself: the stable arm is three times as
large."""

MISSED: Final = "share missed"
"""Unit of criteria that have an absolute limit and no other arm."""

LOAD_TOLERANCE: Final = 0.1
"""Arms whose replicas have loads within this share of each other are compared."""


@dataclass(frozen=True)
class Criterion:
    """One mean that is judged: numbers lie between `low` and `high`, and `bound` is accepted."""

    name: str
    unit: str
    bound: float
    low: float
    high: float


def likelihood(name: str, max_drop_percent: float) -> Criterion:
    """Paired rise of the mean negative log-likelihood of a prompt, in nats per token.

    A mean rise of d nats is a drop of 100 (exp(d) - 1) percent.
    """
    bound = math.log1p(_percent(max_drop_percent) / 100)
    return Criterion(name, "nats per token", bound, -MOST_RISE_NATS, MOST_RISE_NATS + bound)


def task(name: str, max_drop_percent: float) -> Criterion:
    """Paired fall of a score between 0 and 1; the drop is in percentage points."""
    return Criterion(name, "score", _percent(max_drop_percent) / 100, -1.0, 1.0)


def floor(name: str, least_percent: float) -> Criterion:
    """What a grade between 0 and 1 lacks of 1, against a least mean grade in percent."""
    if not 0 < least_percent < 100:
        raise JudgeError(f"least_percent: expected more than 0 and below 100, got {least_percent}")
    return Criterion(name, MISSED, 1 - least_percent / 100, 0.0, 1.0)


def relative_rise(name: str, max_increase_percent: float) -> Criterion:
    """Relative rise of a quantity in blocks of time, as `symmetric` tells it."""
    growth = _percent(max_increase_percent) / 100
    return Criterion(name, "relative difference", growth / (2 + growth), -MOST_FALL, 1.0)


def share_rise(name: str, max_increase: float) -> Criterion:
    """Rise of a share of requests in blocks of time, as a difference of shares."""
    if not 0 <= max_increase < 1:
        raise JudgeError(f"max_increase: expected a share from 0 to 1, got {max_increase}")
    return Criterion(name, "share of requests", max_increase, -MOST_FALL, 1.0)


def goodput_loss(name: str, least_ratio: float) -> Criterion:
    """Relative loss of goodput in blocks of time against a least ratio of candidate to stable.

    With a ratio of 1 a pass is a gain; a move for capacity is content with 0.99.
    """
    if not 0 < least_ratio <= 1:
        raise JudgeError(f"least_ratio: expected more than 0 and at most 1, got {least_ratio}")
    return Criterion(name, "relative difference", (1 - least_ratio) / (1 + least_ratio), -1.0, 1.0)


def symmetric(candidate: float, stable: float) -> float:
    """Difference over sum: between -1 and 1, and 0 in the mean where arms are alike.

    A plain ratio is not: it is larger than 1 in the mean where the denominator is noisy.
    """
    if min(candidate, stable) < 0:
        raise JudgeError(f"expected quantities of at least 0, got {candidate} and {stable}")
    total = candidate + stable
    return (candidate - stable) / total if total else 0.0


def drop_percent(criterion: Criterion, mean: float) -> float:
    """A mean as people read it, in percent or percentage points."""
    if criterion.unit == "nats per token":
        return 100 * math.expm1(mean)
    if criterion.unit == "relative difference":
        return 200 * mean / (1 - mean) if mean < 1 else math.inf
    return 100 * mean


def loads_are_comparable(candidate: float, stable: float) -> bool:
    """Whether loads per replica are near enough to compare what the arms make of them."""
    return abs(candidate - stable) <= LOAD_TOLERANCE * max(candidate, stable)


def _percent(number: float) -> float:
    if not 0 <= number <= 1000:
        raise JudgeError(f"expected percent from 0 to 1000, got {number}")
    return number
