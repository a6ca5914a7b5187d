"""What happened to one KVServing lately: samples and Events, bounded, in memory alone."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

RECENT_SECONDS: Final = 3600.0
RECENT_SLOT_SECONDS: Final = 15.0
"""Finest step of the last hour: metrics are read every few seconds."""
OLDER_SECONDS: Final = 86_400.0
OLDER_SLOT_SECONDS: Final = 300.0
"""Step of the rest of the day."""
MOST_HAPPENINGS: Final = 100


@dataclass(frozen=True, slots=True)
class Band:
    """A number that is known up to an interval; its ends may be infinite."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> "Band":
        """One that is known."""
        return cls(value, value, value)


def worse(first: Band | None, second: Band | None) -> Band | None:
    """The higher of two: of every number that is kept, higher is worse."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda band: band.value)


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers at one moment, in seconds since the epoch; None is unknown."""

    at: float
    kv_use: Band | None = None
    """Use of the fullest engine's KV cache, in percent."""
    ttft: Band | None = None
    """Time to first token at the percentile of `spec.slo`, in milliseconds; ends of its bucket."""
    tpot: Band | None = None
    """Time per output token, alike."""
    quality: Band | None = None
    """Drop of the criterion that is nearest to its bound, in percent, with its interval."""

    def joined(self, other: "Sample") -> "Sample":
        """The worst of each number, at the later moment."""
        return Sample(
            max(self.at, other.at),
            worse(self.kv_use, other.kv_use),
            worse(self.ttft, other.ttft),
            worse(self.tpot, other.tpot),
            worse(self.quality, other.quality),
        )


@dataclass(frozen=True, slots=True)
class Happening:
    """One Event of the operator."""

    at: float
    reason: str
    message: str
    warning: bool = False
    action: str = ""
    """Of the tuner's decision that it tells of; empty for any other."""


class Series:
    """Samples of a day: the last hour in steps of 15 s, and of 5 minutes before that."""

    def __init__(self) -> None:
        self._older: deque[Sample] = deque()
        self._recent: deque[Sample] = deque()

    def __iter__(self) -> Iterator[Sample]:
        yield from self._older
        yield from self._recent

    def __len__(self) -> int:
        return len(self._older) + len(self._recent)

    @property
    def latest(self) -> Sample | None:
        """The newest one."""
        return self._recent[-1] if self._recent else None

    def add(self, sample: Sample) -> None:
        """Take in a sample; one that lies before the newest means that the clock was put back."""
        while self._recent and self._recent[-1].at > sample.at:
            self._recent.pop()
        while self._older and self._older[-1].at > sample.at:
            self._older.pop()
        _append(self._recent, sample, RECENT_SLOT_SECONDS)
        while self._recent[0].at < sample.at - RECENT_SECONDS:
            _append(self._older, self._recent.popleft(), OLDER_SLOT_SECONDS)
        while self._older and self._older[0].at < sample.at - OLDER_SECONDS:
            self._older.popleft()


def _append(samples: deque[Sample], sample: Sample, slot_seconds: float) -> None:
    if samples and samples[-1].at // slot_seconds == sample.at // slot_seconds:
        sample = samples.pop().joined(sample)
    samples.append(sample)
