"""The engines' own counters between two moments: what the before/after table is made of."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Counters:
    """Sums over all engines of every counter, and of every histogram's `_sum` and `_count`."""

    at: float
    values: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """Give one sum; a series that no engine exports is an error, never zero."""
        return self.values[name]


def read(urls: Sequence[str]) -> Counters:
    """Read the engines' /metrics now."""
    sums: dict[str, float] = {}
    at = time.monotonic()
    for url in urls:
        answer = httpx.get(f"{url}/metrics", timeout=30)
        answer.raise_for_status()
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if sample.name.endswith(("_total", "_sum", "_count")):
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return Counters(at, sums)


@dataclass(frozen=True)
class Phase:
    """What the engines did between two readings of their counters."""

    start: Counters
    end: Counters

    @property
    def seconds(self) -> float:
        """How long the phase lasted."""
        return self.end.at - self.start.at

    def increase(self, name: str) -> float:
        """How much one counter grew."""
        return self.end[name] - self.start[name]

    def per_second(self, name: str) -> float:
        """One counter's growth per second."""
        return self.increase(name) / self.seconds

    def mean(self, histogram: str) -> float | None:
        """Mean of what a histogram observed in the phase; None where it observed nothing."""
        count = self.increase(f"{histogram}_count")
        return self.increase(f"{histogram}_sum") / count if count else None
