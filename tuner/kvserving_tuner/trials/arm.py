"""What some engines did in a block of time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import Field

from kvserving_tuner.histograms import Histogram, Interval, merge
from kvserving_tuner.judge import Part, loads_are_comparable
from kvserving_tuner.observation import GaugeWindow, Window
from kvserving_tuner.readings import Known, Reading, total
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.goodput import goodput
from kvserving_tuner.trials.plan import Frozen, Guard

LEAST_WAITING = 0.5
"""Requests that wait in the mean where most of the time somebody does."""


class Late(Frozen):
    """Requests that missed a target of latency, as far as buckets tell."""

    of: float
    """Requests that have this latency."""
    surely: float
    perhaps: float
    """The former ones, and those in the bucket that the target is in."""


class Arm(Frozen):
    """What some engines did in a block of time; None is what could not be measured."""

    load: float
    """Requests finished in a second, per engine."""
    ttft: float | None = None
    """Mean, in seconds."""
    tpot: float | None = None
    """Mean, in seconds."""
    preemptions: float | None = None
    """Per finished request."""
    goodput: float | None = None
    """Requests finished within the targets of latency in a second, of all engines together."""
    engines: int = 1
    ended: float | None = None
    """Requests that were answered or failed, of all engines together."""
    failed: float | None = None
    """Those of them that failed by an engine's fault."""
    late: dict[Guard, Late] = Field(default_factory=dict)
    """By latency that has a target."""
    work: tuple[float, float] | None = None
    """Requests that arrived and tokens that were computed in a second, per engine."""
    backlog: float | None = None
    """Requests that waited when the block began, per engine."""
    queued: bool = True
    """Whether requests waited at every engine, so that what they finished is what they can."""
    in_flight: float | None = None
    """Requests that ran or waited, per engine: mean over the block."""

    @classmethod
    def of(cls, windows: Sequence[Window], slo: Slo | None = None) -> "Arm":
        """What engines did in these windows, one of each; goodput only against targets."""
        within = [None if slo is None else goodput(window, slo) for window in windows]
        return cls(
            goodput=None if None in within else math.fsum(each or 0.0 for each in within),
            engines=len(windows),
            queued=all(_waiting(window) >= LEAST_WAITING for window in windows),
            in_flight=_in_flight(windows),
            load=_rate(windows, "finished"),
            ended=_sum(window.ended for window in windows),
            failed=_sum(window.failed for window in windows),
            late={} if slo is None else _late(windows, slo),
            work=_work(windows),
            backlog=_backlog(windows),
            ttft=_mean(window.ttft for window in windows),
            tpot=_mean(window.tpot for window in windows),
            preemptions=_per_request(windows),
        )

    def has_no_more_to_do(self, than: "Arm") -> bool:
        """Whether an engine finishes, gets and computes no more than one of another arm."""
        if self.work is None or than.work is None:
            return False
        mine, other = (self.load, *self.work), (than.load, *than.work)
        return all(
            one <= two or loads_are_comparable(one, two)
            for one, two in zip(mine, other, strict=True)
        )

    def gets_as_much_as(self, other: "Arm") -> bool:
        """Whether requests arrive at an engine as often, within the tolerance of loads."""
        if self.work is None or other.work is None or min(self.work[0], other.work[0]) <= 0:
            return False
        return loads_are_comparable(self.work[0], other.work[0])

    def has_no_fewer_in_flight(self, than: "Arm") -> bool:
        """Whether as many requests are at an engine, or more, within the tolerance of loads."""
        if self.in_flight is None or than.in_flight is None:
            return False
        return self.in_flight >= than.in_flight or loads_are_comparable(
            self.in_flight, than.in_flight
        )

    @property
    def begins_rested(self) -> bool:
        """Whether nobody waited when the block began."""
        return self.backlog is not None and self.backlog < LEAST_WAITING

    @property
    def idle(self) -> bool:
        """Whether nobody asked anything."""
        return not self.load and not self.ended

    @property
    def outcomes(self) -> Part | None:
        """Failed requests; None where engines do not tell of them."""
        if self.ended is None or self.failed is None:
            return None
        return Part(self.failed, self.ended)


def without(window: Window, own_failures: float) -> Window:
    """A window without the failures of requests that were no user's."""
    ended, failed = window.ended, window.failed
    if not isinstance(ended, Known) or not isinstance(failed, Known):
        return window
    # What failed after the window's last sample is no more than the window has.
    own = min(own_failures, failed.value)
    return replace(
        window,
        ended=replace(ended, value=ended.value - own),
        failed=replace(failed, value=failed.value - own),
    )


def _late(windows: Sequence[Window], slo: Slo) -> dict[Guard, Late]:
    found: dict[Guard, Late] = {}
    for guard, target_ms, name in (
        (Guard.TTFT, slo.ttft_ms, "ttft"), (Guard.TPOT, slo.tpot_ms, "tpot"),
    ):  # fmt: skip
        latencies = [getattr(window, name) for window in windows]
        if target_ms is None or not all(isinstance(each, Histogram) for each in latencies):
            continue
        together = merge(latencies)
        above = (
            together.share_above(target_ms / 1000) if isinstance(together, Histogram) else together
        )
        if isinstance(together, Histogram) and isinstance(above, Interval):
            count = together.count
            found[guard] = Late(of=count, surely=above.lo * count, perhaps=above.hi * count)
    return found


def _work(windows: Sequence[Window]) -> tuple[float, float] | None:
    arrived, computed = 0.0, 0.0
    for window in windows:
        tokens = total((window.prompt_tokens, window.generation_tokens))
        gauges = (window.running, window.waiting)
        if not isinstance(tokens, Known) or not isinstance(window.finished, Known):
            return None
        more = [g.last - g.first for g in gauges if isinstance(g, GaugeWindow)]
        if len(more) < len(gauges):
            return None
        arrived += (window.finished.value + math.fsum(more)) / window.span_seconds
        computed += tokens.value / window.span_seconds
    return arrived / len(windows), computed / len(windows)


def _backlog(windows: Sequence[Window]) -> float | None:
    waited = [each.waiting.first for each in windows if isinstance(each.waiting, GaugeWindow)]
    return math.fsum(waited) / len(waited) if len(waited) == len(windows) else None


def _in_flight(windows: Sequence[Window]) -> float | None:
    gauges = [gauge for each in windows for gauge in (each.running, each.waiting)]
    means = [gauge.mean for gauge in gauges if isinstance(gauge, GaugeWindow)]
    return math.fsum(means) / len(windows) if len(means) == len(gauges) else None


def _waiting(window: Window) -> float:
    return window.waiting.mean if isinstance(window.waiting, GaugeWindow) else 0.0


def _rate(arm: Sequence[Window], name: str) -> float:
    """Increase a second and engine."""
    rates = [_number(getattr(window, name)) / window.span_seconds for window in arm]
    return math.fsum(rates) / len(rates)


def _sum(readings: Iterable[Reading]) -> float | None:
    found = total(readings)
    return found.value if isinstance(found, Known) else None


def _mean(histograms: Iterable[object]) -> float | None:
    found = [each for each in histograms if isinstance(each, Histogram) and each.count]
    count = math.fsum(each.count for each in found)
    return math.fsum(each.total for each in found) / count if count else None


def _per_request(arm: Sequence[Window]) -> float | None:
    finished = math.fsum(_number(window.finished) for window in arm)
    preempted = math.fsum(_number(window.preemptions) for window in arm)
    return preempted / finished if finished else None


def _number(reading: object) -> float:
    return reading.value if isinstance(reading, Known) else 0.0
