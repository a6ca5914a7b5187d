"""Whether two arms with equal settings look equal: what an A/A run is for.

A difference that equal arms have by themselves (another node, a colder prefix cache, a split that
selects) would be taken for an effect. Where the A/A run shows one, nothing is judged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_tuner.judge.betting import Evidence, MeanTest
from kvserving_tuner.judge.criteria import Criterion

AA_ALPHA: Final = 0.01
"""Accepted chance of calling equal arms different."""


@dataclass(frozen=True)
class Calibration:
    """Evidence that equal arms differ in one criterion, in either direction."""

    criterion: Criterion
    above: Evidence
    below: Evidence

    @classmethod
    def start(cls, criterion: Criterion) -> "Calibration":
        """Nothing seen yet."""
        return cls(criterion, _above(criterion).start(), _below(criterion).start())

    def add(self, numbers: Iterable[float]) -> "Calibration":
        """The same after further pairs or blocks of the A/A run."""
        numbers = tuple(numbers)
        above = _above(self.criterion).add(self.above, numbers)
        below = _below(self.criterion).add(self.below, (-number for number in numbers))
        return Calibration(self.criterion, above, below)

    @property
    def arms_differ(self) -> bool:
        """Whether the arms differ without any change."""
        return self.above.rejects(AA_ALPHA / 2) or self.below.rejects(AA_ALPHA / 2)


def _above(criterion: Criterion) -> MeanTest:
    return MeanTest(0.0, criterion.low)


def _below(criterion: Criterion) -> MeanTest:
    return MeanTest(0.0, -criterion.high)
