"""A comparison without an end, for what stays watched: it finds what begins late as well.

The capital of a test that has seen a month of good numbers is all but lost, and a fall that begins
then has to win it back first. So once a test has lost most of it, a new one begins. The accepted
chance of a false alarm is shared out among all tests that can ever come, as alpha spending does it:
the k-th, counted from 0, has 1 / ((k + 1) (k + 2)) of it, which sums to 1. A late test pays with
two logarithms of its number, some pairs, and not with the length of the watch.

A test may begin at any moment that is chosen by what was seen before: its bets are fair from there
on (`betting`), and the union bound does the rest. Shin, Ramdas, Rinaldo, "E-detectors", arXiv
2203.03532, begin a test with every number instead, and bound how often alarms are false rather than
the chance that one ever is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.judge.comparison import Comparison
from kvserving_tuner.judge.criteria import Criterion

LOST: Final = 1 / 40
"""Capital at which a test gives way to a new one: a smaller one leaves more to be won back, with a
larger one there are more tests. From 1/10 to 1/150 a late fall takes about as many numbers."""


@dataclass(frozen=True)
class LongRun:
    """Evidence of one criterion, of the present test."""

    comparison: Comparison
    epoch: int = 0
    """Tests that were given up before."""
    before: int = 0
    """Numbers that these have seen."""

    @classmethod
    def start(cls, criterion: Criterion) -> "LongRun":
        """Nothing seen yet."""
        return cls(Comparison.start(criterion))

    @property
    def count(self) -> int:
        """Numbers seen, of all tests."""
        return self.before + self.comparison.count

    def add(self, numbers: Iterable[float]) -> "LongRun":
        """The same after further numbers, which all are one test's.

        Whoever looks after every call sees what a test has shown before it is given up.
        """
        comparison, epoch, before = self.comparison, self.epoch, self.before
        if comparison.harm.e_value < LOST:
            before, epoch = self.count, epoch + 1
            comparison = Comparison.start(comparison.criterion)
        return LongRun(comparison.add(numbers), epoch, before)

    def is_harmful(self, alpha: float) -> bool:
        """Whether the mean is shown to be above the bound; `alpha` is for all tests together."""
        return self.comparison.is_harmful(alpha / ((self.epoch + 1) * (self.epoch + 2)))
