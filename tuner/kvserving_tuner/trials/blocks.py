"""Blocks of time: what engines with a change and engines without it did in the same window."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.judge import loads_are_comparable, symmetric
from kvserving_tuner.observation import Observation, Window
from kvserving_tuner.readings import Known
from kvserving_tuner.trials.plan import Guard


@dataclass(frozen=True)
class Block:
    """One block: a number for each guard that could be measured, bad where it is high."""

    end: float
    numbers: dict[Guard, float] = field(default_factory=dict)
    comparable: bool = True
    """Whether the arms had loads that are near enough for latencies to be compared."""


def block_of(observation: Observation, candidates: Collection[str], since: float) -> Block | None:
    """The block that begins at `since` or later; None before every engine has a whole one."""
    windows = {engine.target: engine.full for engine in observation.engines}
    candidate: list[Window] = []
    stable: list[Window] = []
    for target, window in windows.items():
        if not isinstance(window, Window) or window.start < since:
            return None
        (candidate if target in candidates else stable).append(window)
    if not candidate or not stable:
        return None
    load, other_load = (_rate(arm, "finished") for arm in (candidate, stable))
    comparable = min(load, other_load) > 0 and loads_are_comparable(load, other_load)
    numbers: dict[Guard, float] = {}
    if comparable:
        pairs = {
            Guard.TTFT: (_mean(w.ttft for w in candidate), _mean(w.ttft for w in stable)),
            Guard.TPOT: (_mean(w.tpot for w in candidate), _mean(w.tpot for w in stable)),
            Guard.PREEMPTIONS: (_per_request(candidate), _per_request(stable)),
        }
        for guard, (with_change, without) in pairs.items():
            if with_change is not None and without is not None:
                numbers[guard] = symmetric(with_change, without)
    if max(load, other_load) > 0:
        # A candidate that serves fewer requests is one that others had to serve instead.
        numbers[Guard.THROUGHPUT] = symmetric(other_load, load)
    return Block(max(window.end for window in (*candidate, *stable)), numbers, comparable)


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
