"""Evidence of one criterion: against the change, for it, and an interval to show."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.betting import Evidence, MeanTest
from kvserving_tuner.judge.criteria import GAIN, LATE, MISSED, REQUESTS, Criterion, drop_percent
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

    @property
    def tests(self) -> tuple[MeanTest, MeanTest]:
        """Tests behind `harm` and `safety`; the latter of numbers with the other sign."""
        return _harm(self.criterion), _safety(self.criterion)

    def is_harmful(self, alpha: float) -> bool:
        """Whether the mean is shown to be above the bound."""
        return self.harm.rejects(alpha)

    def is_safe(self, alpha: float) -> bool:
        """Whether the mean is shown to be below the bound."""
        return not self.beyond and self.safety.rejects(alpha)

    def finding(self) -> "Finding":
        """What is shown of it."""
        interval = _interval(self.criterion).of(self.sums)
        ends = sorted(drop_percent(self.criterion, end) for end in (interval.low, interval.high))
        if self.beyond:
            # The interval counts numbers above the range as its end: it holds from below alone.
            ends[1] = math.inf
        return Finding(
            name=self.criterion.name,
            percent=drop_percent(self.criterion, self.mean),
            bound_percent=drop_percent(self.criterion, self.criterion.bound),
            count=self.count,
            interval_percent=Interval(*ends),
            harm_e_value=self.harm.e_value,
            safety_e_value=self.safety.e_value,
            unit=self.criterion.unit,
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
    unit: str = ""

    def __str__(self) -> str:
        low, high = self.interval_percent.low, self.interval_percent.high
        ends = f"{low:.2f} to {high:.2f}" if math.isfinite(high) else f"from {low:.2f} on"
        seen = f"(95 % interval {ends}, n = {self.count})"
        bound = f"{self.bound_percent:.2f} %"
        if self.unit == GAIN:
            return f"{self.name}: {self.percent:+.2f} % {seen}, more than {bound} has to be shown"
        said = {MISSED: "missed", REQUESTS: "more failed", LATE: "late"}.get(self.unit, "worse")
        return f"{self.name}: {self.percent:.2f} % {said} {seen}, at most {bound} accepted"


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
    return MeanTest(criterion.bound, criterion.low, criterion.harm)


def _safety(criterion: Criterion) -> MeanTest:
    return MeanTest(-criterion.bound, -criterion.high, criterion.safety)


def _interval(criterion: Criterion) -> MeanInterval:
    return MeanInterval(criterion.low, criterion.high, INTERVAL_ALPHA)
