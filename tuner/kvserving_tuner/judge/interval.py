"""An interval for a mean that may be looked at after every number.

A gambler who stakes a fixed share b of what can be lost on `mean < m` is worth at least
exp(b G - c(b) b^2 Q) after numbers whose gains sum to G and whose squared gains sum to Q, since
log(1 + y) >= y - c(b) y^2 for y >= -b (Fan, Grama and Liu, "Exponential inequalities for
martingales with applications", EJP 2015, lemma 4.1). Both sums follow from those of the numbers and
of their squares, for every m at once. So an end of the interval, the first m at which the gambler
has become rich, is the root of a parabola, and the best of a few gamblers who share the chance of a
false alarm is near to the best stake. It is what people are shown beside a verdict; verdicts come
from tests (`betting`), which are somewhat sharper.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import JudgeError

STAKES: Final = (0.9, 0.5, 0.25, 0.1, 0.04)
"""Few numbers that hardly vary want the first, many that do the last."""


@dataclass(frozen=True)
class Interval:
    """Bounds that hold the mean at all times together, with probability 1 - alpha."""

    low: float
    high: float


@dataclass(frozen=True)
class Sums:
    """What is kept of the numbers seen, all scaled to [0, 1]."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0


NOTHING: Final = Sums()
"""Before the first number."""


@dataclass(frozen=True)
class MeanInterval:
    """Interval for the mean of numbers between `low` and `high`; others count as these."""

    low: float
    high: float
    alpha: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise JudgeError(f"high: expected more than low {self.low}, got {self.high}")
        if not 0 < self.alpha < 1:
            raise JudgeError(f"alpha: expected a number between 0 and 1, got {self.alpha}")

    def add(self, sums: Sums, numbers: Iterable[float]) -> Sums:
        """Sums after further numbers."""
        count, total, squares = sums.count, sums.total, sums.squares
        for number in numbers:
            if math.isnan(number):
                raise JudgeError("expected a number, got NaN: a missing value is no evidence")
            scaled = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
            count += 1
            total += scaled
            squares += scaled * scaled
        return Sums(count, total, squares)

    def of(self, sums: Sums) -> Interval:
        """Interval at these sums: everything where nothing was seen."""
        count, total, squares = sums.count, sums.total, sums.squares
        mirrored = Sums(count, count - total, count - 2 * total + squares)
        scale = self.high - self.low
        return Interval(
            self.low + scale * (1 - _upper_end(mirrored, self.alpha / 2)),
            self.low + scale * _upper_end(sums, self.alpha / 2),
        )


def _upper_end(sums: Sums, alpha: float) -> float:
    """Least mean from 0 to 1 that some gambler shows to be too high; 1 where none does."""
    rich = math.log(len(STAKES) / alpha)
    ends = (_end(sums, stake, rich) for stake in STAKES)
    return min((end for end in ends if end is not None), default=1.0)


def _end(sums: Sums, stake: float, rich: float) -> float | None:
    # stake G - c stake^2 Q = rich, where G = (n m - T) / (1 - m) and
    # Q = (n m^2 - 2 m T + S) / (1 - m)^2: times (1 - m)^2, a parabola in m.
    count, total, squares = sums.count, sums.total, sums.squares
    cost = -math.log1p(-stake) - stake
    second = stake * count + cost * count + rich
    first = stake * (count + total) + 2 * cost * total + 2 * rich
    constant = stake * total + cost * squares + rich
    root = first * first - 4 * second * constant
    if root < 0:
        return None
    end = (first - math.sqrt(root)) / (2 * second)
    return end if 0 <= end < 1 else None
