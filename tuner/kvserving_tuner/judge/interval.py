"""An interval for a mean that may be looked at after every number.

The empirical-Bernstein confidence sequence with predictable plug-in of Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting", JRSS B 2024, theorem 2. It is what people
are shown beside a verdict; verdicts come from tests, which are sharper.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import JudgeError

LARGEST_BET: Final = 0.5
"""Truncation of the plug-in, the authors' recommendation."""


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
    """Of differences from the mean before each number and itself."""
    bets: float = 0.0
    weighted: float = 0.0
    spread: float = 0.0


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
        """Sums after further numbers, in their order."""
        for number in numbers:
            if math.isnan(number):
                raise JudgeError("expected a number, got NaN: a missing value is no evidence")
            sums = self._after(sums, (number - self.low) / (self.high - self.low))
        return sums

    def of(self, sums: Sums) -> Interval:
        """Interval at these sums: everything where nothing was seen."""
        if not sums.bets:
            return Interval(self.low, self.high)
        center = sums.weighted / sums.bets
        radius = (math.log(2 / self.alpha) + sums.spread) / sums.bets
        scale = self.high - self.low
        return Interval(
            self.low + scale * max(0.0, center - radius),
            self.low + scale * min(1.0, center + radius),
        )

    def _after(self, sums: Sums, number: float) -> Sums:
        number = min(max(number, 0.0), 1.0)
        count = sums.count + 1
        mean_before = (0.5 + sums.total) / count
        variance_before = (0.25 + sums.squares) / count
        wanted = 2 * math.log(2 / self.alpha) / (variance_before * count * math.log(1 + count))
        bet = min(math.sqrt(wanted), LARGEST_BET)
        total = sums.total + number
        mean = (0.5 + total) / (count + 1)
        return Sums(
            count=count,
            total=total,
            squares=sums.squares + (number - mean) ** 2,
            bets=sums.bets + bet,
            weighted=sums.weighted + bet * number,
            spread=sums.spread + (number - mean_before) ** 2 * (-math.log1p(-bet) - bet),
        )
