"""Sequential tests of a mean by betting: valid at every look, whenever one chooses to stop.

A gambler bets on `mean > bound` at fair odds under `mean <= bound`. Fair bets hardly ever make
rich: the chance that the capital ever reaches 1/alpha is at most alpha (Ville's inequality), for
any distribution with this lower limit and any dependence that keeps the conditional mean below the
bound. The capital is the e-value. Waudby-Smith and Ramdas, "Estimating means of bounded random
variables by betting", JRSS B 2024, sections 3 and 4; here the bet is a fixed mixture of fractions.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvserving_tuner.errors import JudgeError

FRACTIONS: Final = (0.1, 0.25, 0.4, 0.55, 0.9)
"""Bets as shares of the largest one that can never lose everything.

Small ones find small effects; more of them would spread the first capital thinner
(`benchmarks/judge_error_rates.py`).
"""


@dataclass(frozen=True)
class MeanTest:
    """Test of the hypothesis that a mean is at most `bound`, for numbers of at least `low`.

    Numbers below `low` count as `low`: where that happens often, the test is no longer valid.
    """

    bound: float
    low: float

    def __post_init__(self) -> None:
        if not self.low < self.bound:
            raise JudgeError(f"low: expected less than the bound {self.bound}, got {self.low}")

    @cached_property
    def bets(self) -> tuple[float, ...]:
        """Capital per unit of difference that each part of the first capital puts at stake."""
        return tuple(fraction / (self.bound - self.low) for fraction in FRACTIONS)

    def start(self) -> "Evidence":
        """Evidence before the first number."""
        return Evidence((0.0,) * len(self.bets))

    def add(self, evidence: "Evidence", numbers: Iterable[float]) -> "Evidence":
        """Evidence after further numbers, in their order."""
        logs, count, peak = list(evidence.log_capitals), evidence.count, evidence.log_peak
        for number in numbers:
            if math.isnan(number):
                raise JudgeError("expected a number, got NaN: a missing value is no evidence")
            gain = max(number, self.low) - self.bound
            logs = [log + math.log1p(bet * gain) for log, bet in zip(logs, self.bets, strict=True)]
            count += 1
            peak = max(peak, _log_mean(logs))
        return Evidence(tuple(logs), count, peak)


@dataclass(frozen=True)
class Evidence:
    """Where the bets of a test stand; small enough to be kept in an object's status."""

    log_capitals: tuple[float, ...]
    count: int = 0
    log_peak: float = 0.0
    """Logarithm of the largest e-value so far: a test that once rejected stays rejected."""

    @property
    def e_value(self) -> float:
        """Capital now: evidence against the hypothesis, 1 without any."""
        return math.exp(min(_log_mean(self.log_capitals), 700.0))

    def rejects(self, alpha: float) -> bool:
        """Whether the hypothesis was ever rejected at this error rate."""
        return self.log_peak >= -math.log(alpha)


def _log_mean(logs: Iterable[float]) -> float:
    logs = tuple(logs)
    top = max(logs)
    return top + math.log(math.fsum(math.exp(log - top) for log in logs) / len(logs))
