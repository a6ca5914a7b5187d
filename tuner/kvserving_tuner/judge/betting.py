"""Sequential tests of a mean by betting: valid at every look, whenever one chooses to stop.

A gambler bets on `mean > bound` at fair odds under `mean <= bound`. Fair bets hardly ever make
rich: the chance that the capital ever reaches 1/alpha is at most alpha (Ville's inequality), for
any distribution with this lower limit and any dependence that keeps the conditional mean below the
bound, as long as each stake is fixed before the number that it is put on. The capital is the
e-value. Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
2024, sections 3 and 4.

Here two gamblers share the first capital. Both know nothing of numbers but their mean square so
far, counted from the bound in units of what can be lost at most. The steady one looks for a mean of
a given size, and stakes that size over the mean square (Kelly's stake for it). The other one stakes
a fixed part, and a large one where the square is large: scores that often differ are what a large
drop looks like. At the bound scores mostly agree, both stake about alike there, and the chance of
a false alarm is not split between small effects and large ones (`docs/decisions/0012`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.errors import JudgeError

LARGEST: Final = 0.9
"""Largest stake, as a share of the one that could lose everything."""

CALM_STAKE, WILD_STAKE, WILD_SQUARE = 0.42, 0.87, 0.16
"""Stakes of the other gambler below and from a mean square on. These, and `PRIOR_COUNT`, took the
fewest pairs among some hundred tried (`benchmarks/judge_error_rates.py`)."""

PRIOR_COUNT: Final = 12
"""Numbers that the mean square expected beforehand is worth."""


@dataclass(frozen=True)
class Stakes:
    """What is expected of numbers beforehand; a wrong guess costs power, never validity."""

    size: float
    """Distance of the mean from the bound that the steady gambler looks for."""
    square: float
    """Expected mean square, from the bound and in units of what can be lost."""
    steady: float
    """Part of the first capital that the steady gambler has."""


@dataclass(frozen=True)
class MeanTest:
    """Test of the hypothesis that a mean is at most `bound`, for numbers of at least `low`.

    Numbers below `low` count as `low`: where that happens often, the test is no longer valid.
    """

    bound: float
    low: float
    stakes: Stakes

    def __post_init__(self) -> None:
        if not self.low < self.bound:
            raise JudgeError(f"low: expected less than the bound {self.bound}, got {self.low}")
        if not (self.stakes.size > 0 and self.stakes.square > 0 and 0 < self.stakes.steady < 1):
            raise JudgeError(f"stakes: expected positive numbers, got {self.stakes}")

    def start(self) -> "Evidence":
        """Evidence before the first number."""
        return Evidence((math.log(self.stakes.steady), math.log1p(-self.stakes.steady)))

    def add(self, evidence: "Evidence", numbers: Iterable[float]) -> "Evidence":
        """Evidence after further numbers, in their order."""
        steady, other = evidence.log_capitals
        count, squares, peak = evidence.count, evidence.squares, evidence.log_peak
        before, most = PRIOR_COUNT * self.stakes.square, self.bound - self.low
        for number in numbers:
            if math.isnan(number):
                raise JudgeError("expected a number, got NaN: a missing value is no evidence")
            gain = (max(number, self.low) - self.bound) / most
            square = (before + squares) / (PRIOR_COUNT + count)
            steady += math.log1p(min(self.stakes.size / most / square, LARGEST) * gain)
            other += math.log1p((CALM_STAKE if square < WILD_SQUARE else WILD_STAKE) * gain)
            squares += gain * gain
            count += 1
            peak = max(peak, _log_sum(steady, other))
        return Evidence((steady, other), count, squares, peak)


@dataclass(frozen=True)
class Evidence:
    """Where the bets of a test stand; small enough to be kept in an object's status."""

    log_capitals: tuple[float, float]
    """Of the steady gambler and of the other one."""
    count: int = 0
    squares: float = 0.0
    """Sum of squares of the numbers, from the bound and in units of what can be lost."""
    log_peak: float = 0.0
    """Logarithm of the largest e-value so far: a test that once rejected stays rejected."""

    @property
    def e_value(self) -> float:
        """Capital now: evidence against the hypothesis, 1 without any."""
        return math.exp(min(_log_sum(*self.log_capitals), 700.0))

    def rejects(self, alpha: float) -> bool:
        """Whether the hypothesis was ever rejected at this error rate."""
        return self.log_peak >= -math.log(alpha)


def _log_sum(first: float, second: float) -> float:
    top = max(first, second)
    return top + math.log1p(math.exp(min(first, second) - top))
