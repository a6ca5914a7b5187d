"""Latencies and lengths as the engine counts them: in buckets, known only up to a bucket.

A percentile that falls between two bucket edges is reported as the interval between them. Whoever
compares it with a limit then sees whether the comparison is certain, instead of trusting an
interpolated number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvserving_tuner.readings import Unknown


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a value that is not known more exactly, inclusive; `hi` may be infinite."""

    lo: float
    hi: float

    @property
    def exact(self) -> bool:
        """Whether both bounds agree."""
        return self.lo == self.hi

    def scaled(self, factor: float) -> "Interval":
        """Both bounds times `factor`."""
        return Interval(self.lo * factor, self.hi * factor)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per bucket over some time.

    `edges` are the upper bounds in ascending order, the last infinite; `counts` are per bucket, not
    cumulative.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Number of observed values."""
        return math.fsum(self.counts)

    @property
    def mean(self) -> float | Unknown:
        """Mean of the observed values, exact: engines export the sum."""
        return self.total / self.count if self.count else Unknown("no observations")

    def quantile(self, share: float) -> Interval | Unknown:
        """The bucket that holds the value below which `share` (in (0, 1]) of all values lie."""
        if not self.count:
            return Unknown("no observations")
        rank, seen, lower = share * self.count, 0.0, 0.0
        for edge, count in zip(self.edges, self.counts, strict=True):
            seen += count
            if count and seen >= rank - 1e-9:
                return Interval(lower, edge)
            lower = edge
        return Interval(lower, math.inf)

    def share_above(self, limit: float) -> Interval | Unknown:
        """Share of values above `limit`; exact when `limit` is a bucket edge."""
        if not self.count:
            return Unknown("no observations")
        certain = possible = lower = 0.0
        for edge, count in zip(self.edges, self.counts, strict=True):
            if lower >= limit:
                certain += count
            if edge > limit:
                possible += count
            lower = edge
        return Interval(certain / self.count, possible / self.count)

    def squared_variation(self) -> float | Unknown:
        """Squared coefficient of variation, estimated from bucket middles."""
        mean = self.mean
        if isinstance(mean, Unknown) or mean <= 0:
            return Unknown("no observations")
        second, lower = 0.0, 0.0
        for edge, count in zip(self.edges, self.counts, strict=True):
            middle = lower if math.isinf(edge) else (lower + edge) / 2
            second += count * middle * middle
            lower = edge
        first = math.fsum(
            count * (low if math.isinf(high) else (low + high) / 2)
            for low, high, count in zip((0.0, *self.edges), self.edges, self.counts, strict=False)
        )
        if first <= 0:
            return 0.0
        return max(0.0, second * self.count / (first * first) - 1.0)


def merge(histograms: Sequence[Histogram]) -> Histogram | Unknown:
    """Add distributions on the edges that all of them have: wider buckets, nothing invented."""
    if not histograms:
        return Unknown("no histograms")
    edges = tuple(sorted(set.intersection(*(set(part.edges) for part in histograms))))
    counts = [0.0] * len(edges)
    for part in histograms:
        position = 0
        for edge, count in zip(part.edges, part.counts, strict=True):
            while edges[position] < edge:
                position += 1
            counts[position] += count
    return Histogram(edges, tuple(counts), math.fsum(part.total for part in histograms))
