"""A comparison without an end, for what stays watched: it finds what begins late as well.

The capital of a test that has seen a month of good numbers is all but lost, and a fall that begins
then has to win it back first. So a new test begins after every `EPOCH` numbers. The accepted chance
of a false alarm is shared out among all tests that can ever come, as alpha spending does it: the
k-th, counted from 0, has 1 / ((k + 1) (k + 2)) of it, which sums to 1. A late test pays with two
logarithms of its number, some pairs, and not with the length of the watch.

Epochs end by count alone, never by what was seen, so each test is one of fresh bets. Sources:
Ville's inequality (`betting`) and the union bound. Shin, Ramdas, Rinaldo, "E-detectors", arXiv
2203.03532, begin a test with every number instead, and bound how often alarms are false rather than
the chance that one ever is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvserving_tuner.judge.comparison import Comparison
from kvserving_tuner.judge.criteria import Criterion

EPOCH: Final = 1000
"""Numbers of a test: as many as a fall of five points takes to show at a margin of two."""


@dataclass(frozen=True)
class LongRun:
    """Evidence of one criterion, of the present epoch."""

    comparison: Comparison
    epoch: int = 0

    @classmethod
    def start(cls, criterion: Criterion) -> "LongRun":
        """Nothing seen yet."""
        return cls(Comparison.start(criterion))

    def add(self, numbers: Iterable[float]) -> "LongRun":
        """The same after further numbers, which all are in one epoch.

        Whoever looks after every call sees an epoch's last numbers before the next one begins.
        """
        begun = self
        if self.comparison.count >= EPOCH:
            begun = LongRun(Comparison.start(self.comparison.criterion), self.epoch + 1)
        return replace(begun, comparison=begun.comparison.add(numbers))

    def is_harmful(self, alpha: float) -> bool:
        """Whether the mean is shown to be above the bound; `alpha` is for all epochs together."""
        return self.comparison.is_harmful(alpha / ((self.epoch + 1) * (self.epoch + 2)))
