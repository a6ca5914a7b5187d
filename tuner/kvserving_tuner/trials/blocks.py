"""Blocks of time: what engines with a change and engines without it did in the same window."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kvserving_tuner.judge import (
    Part,
    loads_are_comparable,
    share_difference,
    share_missed,
    shortfall,
    symmetric,
)
from kvserving_tuner.judge.shares import LEAST_RANGE
from kvserving_tuner.observation import Observation, Window
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.arm import Arm, without
from kvserving_tuner.trials.plan import GOODPUT_GAIN, TARGETS, Guard

GAP_SECONDS = 30.0
"""Time between two blocks of which nothing is known; scrapes are less far apart."""


@dataclass(frozen=True)
class Block:
    """One block: a number for each guard that could be measured, and for the gain."""

    end: float
    numbers: dict[str, float] = field(default_factory=dict)
    tells_failures: bool = True
    """Whether engines say how many requests failed."""
    rested: bool = False
    """Whether the candidates carry nothing over into the next block from having had more to do."""


def block_of(
    observation: Observation,
    candidates: Collection[str],
    since: float,
    slo: Slo | None = None,
    *,
    weighted: bool = False,
    most_failed: float = LEAST_RANGE,
    own_failures: Mapping[str, float] | None = None,
    rested: bool = False,
) -> Block | None:
    """The block that begins at `since` or later; None before every engine has a whole one.

    Gain and targets of latency are measured where a spec's are given. `weighted` says that a route
    decides how much each arm serves: then only loads that are alike per engine tell a gain from a
    share. `own_failures` are requests of the trial itself that engines have failed, by engine;
    `rested` is what the block before this one said of the candidates.
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
    windows = (*candidate, *stable)
    one, other = Arm.of(candidate, slo), Arm.of(stable, slo)
    gap = max(window.start for window in windows) - since
    rested = (rested and gap <= GAP_SECONDS) or one.begins_rested
    return Block(
        max(window.end for window in windows),
        compared(one, other, slo, weighted=weighted, most_failed=most_failed, rested=rested),
        tells_failures=one.outcomes is not None and other.outcomes is not None,
        rested=rested and one.has_no_more_to_do(other),
    )


def compared(
    candidate: Arm,
    stable: Arm,
    slo: Slo | None = None,
    *,
    weighted: bool = False,
    turns: bool = False,
    most_failed: float = LEAST_RANGE,
    rested: bool = False,
) -> dict[str, float]:
    """A number for each guard that both arms say something of, and for the gain; bad is high.

    `turns` says that the arms are one engine at different times, which its clients all ask.
    `most_failed` is the share of failed requests that counts at most, and `rested` says that the
    candidates carry nothing over from having had more to do.
    """
    numbers: dict[str, float] = {}
    if candidate.outcomes is not None and stable.outcomes is not None:
        # Whatever the loads are: an engine may be slow under load, but has to answer.
        difference = share_difference(candidate.outcomes, stable.outcomes, most_failed)
        if difference is not None:
            numbers[Guard.ERRORS] = difference
    low, high = sorted((candidate.load, stable.load))
    # Latencies of unlike loads say more about the loads than about the change. Loads are alike too
    # where engines are sent as much and one of them does not keep up.
    alike = low > 0 and (
        loads_are_comparable(candidate.load, stable.load) or candidate.gets_as_much_as(stable)
    )
    if alike:
        pairs = {
            Guard.TTFT: (candidate.ttft, stable.ttft),
            Guard.TPOT: (candidate.tpot, stable.tpot),
            Guard.PREEMPTIONS: (candidate.preemptions, stable.preemptions),
        }
        for guard, (with_change, without) in pairs.items():
            if with_change is not None and without is not None:
                numbers[guard] = symmetric(with_change, without)
    elif slo is not None and rested and candidate.has_no_more_to_do(stable):
        # What fewer requests meet with is not due to the load. What more of them meet with may be:
        # the other engines do not tell whether they could carry it.
        numbers |= _missed(candidate, stable, slo)
    # Connections that clients keep alive give each engine its own part of the requests, and so does
    # a route. Then only where requests queue does what is finished tell of the engines.
    full = stable.queued and not weighted
    if high > 0 and (turns or alike or (full and candidate.queued)):
        numbers[Guard.THROUGHPUT] = symmetric(stable.load, candidate.load)
    good, other = candidate.goodput, stable.goodput
    # More requests would not let full engines answer more of them in time, but fewer would: the
    # candidates must not have had fewer.
    comparable = turns or alike or (full and candidate.has_no_fewer_in_flight(stable))
    if good is not None and other is not None and good + other > 0 and comparable:
        share = candidate.engines / (candidate.engines + stable.engines)
        numbers[GOODPUT_GAIN] = shortfall(good, other, share)
    return numbers


def _missed(candidate: Arm, stable: Arm, slo: Slo) -> dict[str, float]:
    """Shares of requests that missed targets, in doubt in the candidate's favor."""
    numbers: dict[str, float] = {}
    for guard, name in TARGETS.items():
        mine, other = candidate.late.get(guard), stable.late.get(guard)
        if mine is None or other is None:
            continue
        share = share_missed(
            Part(mine.surely, mine.of), Part(other.perhaps, other.of), slo.missed_share
        )
        if share is not None:
            numbers[name] = share
    return numbers
