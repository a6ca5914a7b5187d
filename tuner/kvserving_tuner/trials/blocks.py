"""Blocks of time: what engines with a change and engines without it did in the same window."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.judge import Part, loads_are_comparable, share_difference, shortfall, symmetric
from kvserving_tuner.judge.shares import LEAST_RANGE
from kvserving_tuner.observation import GaugeWindow, Observation, Window
from kvserving_tuner.readings import Known, Reading, total
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.goodput import goodput
from kvserving_tuner.trials.plan import GOODPUT_GAIN, Frozen, Guard

LEAST_WAITING = 0.5
"""Requests that wait in the mean where most of the time somebody does."""


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
    queued: bool = True
    """Whether requests waited at every engine, so that what they finished is what they can."""

    @classmethod
    def of(cls, windows: Sequence[Window], slo: Slo | None = None) -> "Arm":
        """What engines did in these windows, one of each; goodput only against targets."""
        within = [None if slo is None else goodput(window, slo) for window in windows]
        return cls(
            goodput=None if None in within else math.fsum(each or 0.0 for each in within),
            engines=len(windows),
            queued=all(_waiting(window) >= LEAST_WAITING for window in windows),
            load=_rate(windows, "finished"),
            ended=_sum(window.ended for window in windows),
            failed=_sum(window.failed for window in windows),
            ttft=_mean(window.ttft for window in windows),
            tpot=_mean(window.tpot for window in windows),
            preemptions=_per_request(windows),
        )

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


@dataclass(frozen=True)
class Block:
    """One block: a number for each guard that could be measured, and for the gain."""

    end: float
    numbers: dict[str, float] = field(default_factory=dict)
    tells_failures: bool = True
    """Whether engines say how many requests failed."""


def block_of(
    observation: Observation,
    candidates: Collection[str],
    since: float,
    slo: Slo | None = None,
    *,
    weighted: bool = False,
    most_failed: float = LEAST_RANGE,
    own_failures: Mapping[str, float] | None = None,
) -> Block | None:
    """The block that begins at `since` or later; None before every engine has a whole one.

    Gain is measured where targets of latency are given. `weighted` says that a route decides how
    much each arm serves: then only loads that are alike per engine tell a gain from a share.
    `own_failures` are requests of the trial itself that engines have failed, by engine.
    """
    candidate: list[Window] = []
    stable: list[Window] = []
    for engine in observation.engines:
        window = engine.full
        if not isinstance(window, Window) or window.start < since:
            return None
        window = without(window, (own_failures or {}).get(engine.target, 0.0))
        (candidate if engine.target in candidates else stable).append(window)
    if not candidate or not stable:
        return None
    end = max(window.end for window in (*candidate, *stable))
    arms = Arm.of(candidate, slo), Arm.of(stable, slo)
    numbers = compared(*arms, weighted=weighted, most_failed=most_failed)
    return Block(end, numbers, all(arm.outcomes is not None for arm in arms))


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


def compared(
    candidate: Arm,
    stable: Arm,
    *,
    weighted: bool = False,
    turns: bool = False,
    most_failed: float = LEAST_RANGE,
) -> dict[str, float]:
    """A number for each guard that both arms say something of, and for the gain; bad is high.

    `turns` says that the arms are one engine at different times, which its clients all ask.
    `most_failed` is the share of failed requests that counts at most.
    """
    numbers: dict[str, float] = {}
    if candidate.outcomes is not None and stable.outcomes is not None:
        # Whatever the loads are: an engine may be slow under load, but has to answer.
        difference = share_difference(candidate.outcomes, stable.outcomes, most_failed)
        if difference is not None:
            numbers[Guard.ERRORS] = difference
    low, high = sorted((candidate.load, stable.load))
    # Latencies of unlike loads say more about the loads than about the change.
    alike = low > 0 and loads_are_comparable(candidate.load, stable.load)
    if alike:
        pairs = {
            Guard.TTFT: (candidate.ttft, stable.ttft),
            Guard.TPOT: (candidate.tpot, stable.tpot),
            Guard.PREEMPTIONS: (candidate.preemptions, stable.preemptions),
        }
        for guard, (with_change, without) in pairs.items():
            if with_change is not None and without is not None:
                numbers[guard] = symmetric(with_change, without)
    # Connections that clients keep alive give each engine its own part of the requests, and so does
    # a route. Only where requests queue at both does what is finished tell of the engines.
    tells = turns or alike or (candidate.queued and stable.queued and not weighted)
    if high > 0 and tells:
        numbers[Guard.THROUGHPUT] = symmetric(stable.load, candidate.load)
    good, other = candidate.goodput, stable.goodput
    if good is not None and other is not None and good + other > 0 and tells:
        share = candidate.engines / (candidate.engines + stable.engines)
        numbers[GOODPUT_GAIN] = shortfall(good, other, share)
    return numbers


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
