"""Evidence of one criterion: against the change, for it, and an interval to show."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.betting import Evidence, MeanTest
from kvserving_tuner.judge.criteria import MISSED, Criterion, drop_percent
from kvserving_tuner.judge.interval import NOTHING, Interval, MeanInterval, Sums

INTERVAL_ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """What pairs or blocks of one criterion have shown so far."""

    criterion: Criterion
    harm: Evidence
    """Against `the mean is at most the bound`."""
    safety: Evidence
    """Against `the mean is at least the bound`."""
    sums: Sums = NOTHING
    beyond: int = 0
    """Numbers above the criterion's range: any of them forbids a pass."""
    total: float = 0.0

    @classmethod
    def start(cls, criterion: Criterion) -> "Comparison":
        """Nothing seen yet."""
        return cls(criterion, _harm(criterion).start(), _safety(criterion).start())

    @property
    def count(self) -> int:
        """Pairs or blocks seen."""
        return self.harm.count

    @property
    def mean(self) -> float:
        """Mean seen, in the criterion's unit; 0 before the first number."""
        return self.total / self.count if self.count else 0.0

    def add(self, numbers: Iterable[float]) -> "Comparison":
        """The same after further pairs or blocks, in their order."""
        numbers = tuple(numbers)
        limits = self.criterion
        return replace(
            self,
            harm=_harm(limits).add(self.harm, numbers),
            safety=_safety(limits).add(self.safety, (-number for number in numbers)),
            sums=_interval(limits).add(self.sums, numbers),
            beyond=self.beyond + sum(number > limits.high for number in numbers),
            total=self.total + sum(numbers),
        )

    def is_harmful(self, alpha: float) -> bool:
        """Whether the mean is shown to be above the bound."""
        return self.harm.rejects(alpha)

    def is_safe(self, alpha: float) -> bool:
        """Whether the mean is shown to be below the bound."""
        return not self.beyond and self.safety.rejects(alpha)

    def finding(self) -> "Finding":
        """What is shown of it."""
        interval = _interval(self.criterion).of(self.sums)
        return Finding(
            name=self.criterion.name,
            percent=drop_percent(self.criterion, self.mean),
            bound_percent=drop_percent(self.criterion, self.criterion.bound),
            count=self.count,
            interval_percent=Interval(
                drop_percent(self.criterion, interval.low),
                drop_percent(self.criterion, interval.high),
            ),
            harm_e_value=self.harm.e_value,
            safety_e_value=self.safety.e_value,
            said="missed" if self.criterion.unit == MISSED else "worse",
        )


@dataclass(frozen=True)
class Finding:
    """A comparison for people: what was seen, what is accepted, and how sure that is."""

    name: str
    percent: float
    bound_percent: float
    count: int
    interval_percent: Interval
    harm_e_value: float
    safety_e_value: float
    said: str = "worse"

    def __str__(self) -> str:
        low, high = self.interval_percent.low, self.interval_percent.high
        return (
            f"{self.name}: {self.percent:.2f} % {self.said} "
            f"(95 % interval {low:.2f} to {high:.2f}, n = {self.count}), "
            f"at most {self.bound_percent:.2f} % accepted"
        )


def least_to_show(criterion: Criterion, alpha: float) -> int:
    """Numbers that show a mean to be below its bound where each of them is 0, at this error rate.

    JudgeError where no number can do so: the bound is 0 or less.
    """
    if criterion.bound <= 0:
        raise JudgeError(f"{criterion.name}: expected a bound above 0, got {criterion.bound}")
    test = _safety(criterion)
    evidence = test.start()
    while not evidence.rejects(alpha):
        evidence = test.add(evidence, (0.0,))
    return evidence.count


def _harm(criterion: Criterion) -> MeanTest:
    return MeanTest(criterion.bound, criterion.low)


def _safety(criterion: Criterion) -> MeanTest:
    return MeanTest(-criterion.bound, -criterion.high)


def _interval(criterion: Criterion) -> MeanInterval:
    return MeanInterval(criterion.low, criterion.high, INTERVAL_ALPHA)
