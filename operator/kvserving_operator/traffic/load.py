"""How busy engines are, and whether the pods of each arm can carry the share that a step asks for.

A share is a promise about users, not about machines: 5 % for one pod of four leaves the others a
quarter more than before. Where they cannot carry that, each pod gets as much as any other, which
they have carried all the time.
"""

import math
from dataclasses import dataclass

from kvserving_tuner.observation import EngineObservation, GaugeWindow, Observation, Window
from kvserving_tuner.readings import Known

HEADROOM = 0.9
"""Part of an engine's sequences and cache that may be in use on average: beyond it a burst
queues."""
LEAST, MOST = 1, 99
"""Percent that an arm with pods gets: each has to be asked something to be judged."""


@dataclass(frozen=True)
class Share:
    """Percent of the requests for the candidates, and whether it is another than asked for."""

    percent: int
    raised: bool = False


def demand(observation: Observation | None) -> float | None:
    """Load of all engines together, in engines that it fills; None where one's is not known."""
    if observation is None or not observation.engines:
        return None
    uses = [_use(engine) for engine in observation.engines]
    known = [use for use in uses if use is not None]
    return math.fsum(known) if len(known) == len(uses) else None


def share(
    asked: int, candidates: int, others: int, load: float | None, *, raised: bool = False
) -> Share:
    """Share for so many candidates beside so many other pods; none is made up for an empty arm.

    One that was raised stays so for its step: a load that moves about the limit would flap it.
    Without a known load there is no reason to raise it.
    """
    if candidates < 1 or others < 1:
        raise ValueError(f"expected pods in both arms, got {candidates} and {others}")
    even = _bounded(round(100 * candidates / (candidates + others)))
    asked = _bounded(asked)
    if asked == even:
        return Share(asked)
    if raised or (load is not None and not _carried(asked, candidates, others, load)):
        return Share(even, raised=True)
    return Share(asked)


def _carried(percent: int, candidates: int, others: int, load: float) -> bool:
    part = percent / 100
    return part * load <= HEADROOM * candidates and (1 - part) * load <= HEADROOM * others


def _bounded(percent: int) -> int:
    return min(max(LEAST, percent), MOST)


def _use(engine: EngineObservation) -> float | None:
    """Part of an engine that is in use: of its sequences, with those that wait, or of its cache.

    The larger of the two, as either can be what it runs out of.
    """
    window, cap = engine.full, engine.max_active_seqs
    if not isinstance(window, Window):
        return None
    gauges = (window.running, window.waiting, window.kv_usage)
    running, waiting, usage = (g.mean if isinstance(g, GaugeWindow) else None for g in gauges)
    if running is None or waiting is None or usage is None:
        return None
    if not isinstance(cap, Known) or cap.value <= 0:
        return None
    return max((running + waiting) / cap.value, usage)
