"""How the evidence of a trial grew, number by number; bounded, in memory alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvserving_operator.trials.record import Record
from kvserving_operator.web.history import Band
from kvserving_tuner.judge import Comparison

MOST_POINTS: Final = 96
"""Points of a curve: with more, every second one is left out."""
MOST_CURVES: Final = 64
"""As many as the status of a KVTrial has."""


@dataclass(frozen=True, slots=True)
class Point:
    """What so many numbers had shown, in percent."""

    samples: int
    band: Band


@dataclass(slots=True)
class Curve:
    """One criterion of a trial."""

    name: str
    bound: float
    """Largest accepted value, in percent; of a gain the least that has to be shown."""
    unit: str = ""
    points: list[Point] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """Take in a point; where evidence begins anew, the curve does."""
        if self.points and point.samples < self.points[-1].samples:
            self.points.clear()
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            # The newest stays.
            del self.points[-2::-2]


@dataclass(slots=True)
class TrialCurves:
    """All criteria of one trial."""

    since: float
    """When it was first seen, in seconds since the epoch."""
    curves: dict[str, Curve] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Take in what a trial has shown so far."""
        for name, comparison in record.progress.evidence.items():
            known = self.curves.get(name)
            if not comparison.count or (known is None and len(self.curves) >= MOST_CURVES):
                continue
            if known is None or known.points[-1].samples != comparison.count:
                self._add(name, comparison)

    def _add(self, name: str, comparison: Comparison) -> None:
        found = comparison.finding()
        ends = found.interval_percent
        curve = self.curves.setdefault(name, Curve(name, found.bound_percent, found.unit))
        curve.bound = found.bound_percent
        curve.add(Point(found.count, Band(found.percent, ends.low, ends.high)))


Curves = Mapping[str, Curve]
