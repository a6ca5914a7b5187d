"""Blocks of time: what engines with a change and engines without it did in the same window."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.judge import loads_are_comparable, symmetric
from kvserving_tuner.observation import Observation, Window
from kvserving_tuner.readings import Known
from kvserving_tuner.trials.plan import Frozen, Guard


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

    @classmethod
    def of(cls, windows: Sequence[Window]) -> "Arm":
        """What engines did in these windows, one of each."""
        return cls(
            load=_rate(windows, "finished"),
            ttft=_mean(window.ttft for window in windows),
            tpot=_mean(window.tpot for window in windows),
            preemptions=_per_request(windows),
        )


@dataclass(frozen=True)
class Block:
    """One block: a number for each guard that could be measured, bad where it is high."""

    end: float
    numbers: dict[Guard, float] = field(default_factory=dict)


def block_of(observation: Observation, candidates: Collection[str], since: float) -> Block | None:
    """The block that begins at `since` or later; None before every engine has a whole one."""
    candidate: list[Window] = []
    stable: list[Window] = []
    for engine in observation.engines:
        window = engine.full
        if not isinstance(window, Window) or window.start < since:
            return None
        (candidate if engine.target in candidates else stable).append(window)
    if not candidate or not stable:
        return None
    end = max(window.end for window in (*candidate, *stable))
    return Block(end, compared(Arm.of(candidate), Arm.of(stable)))


def compared(candidate: Arm, stable: Arm) -> dict[Guard, float]:
    """A number for each guard that both arms say something of."""
    numbers: dict[Guard, float] = {}
    low, high = sorted((candidate.load, stable.load))
    # Latencies of unlike loads say more about the loads than about the change.
    if low > 0 and loads_are_comparable(candidate.load, stable.load):
        pairs = {
            Guard.TTFT: (candidate.ttft, stable.ttft),
            Guard.TPOT: (candidate.tpot, stable.tpot),
            Guard.PREEMPTIONS: (candidate.preemptions, stable.preemptions),
        }
        for guard, (with_change, without) in pairs.items():
            if with_change is not None and without is not None:
                numbers[guard] = symmetric(with_change, without)
    if high > 0:
        # A candidate that serves fewer requests is one that others had to serve instead.
        numbers[Guard.THROUGHPUT] = symmetric(stable.load, candidate.load)
    return numbers


def _rate(arm: Sequence[Window], name: str) -> float:
    """Increase a second and engine."""
    rates = [_number(getattr(window, name)) / window.span_seconds for window in arm]
    return math.fsum(rates) / len(rates)


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
