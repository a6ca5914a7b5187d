"""Numbers and Events of one look, as the history keeps them; pure."""

import math
from collections.abc import Iterable

from kvserving_operator.exported import quality_evidence
from kvserving_operator.facts import Facts
from kvserving_operator.looks import Look
from kvserving_operator.web.history import Band, Happening, Sample
from kvserving_tuner.histograms import Histogram, Interval
from kvserving_tuner.judge import Finding
from kvserving_tuner.readings import Unknown, known


def sample_of(facts: Facts) -> Sample | None:
    """Numbers of a look; None where it read no metrics."""
    observation = facts.turn.observation
    if observation is None or not observation.engines:
        return None
    fleet, share = observation.fleet, facts.serving.spec.slo.percentile / 100
    used = known(fleet.kv_usage_max)
    return Sample(
        at=observation.at,
        kv_use=None if used is None else Band.exactly(100 * used),
        ttft=latency(fleet.ttft, share),
        tpot=latency(fleet.tpot, share),
        quality=quality_of(each.finding() for _, each in quality_evidence(facts.trials)),
    )


def latency(found: Histogram | Unknown, share: float) -> Band | None:
    """Milliseconds that this share of the requests took at most; the ends are those of a bucket."""
    ends = found.quantile(share) if isinstance(found, Histogram) else found
    if not isinstance(ends, Interval):
        return None
    low, high = 1000 * ends.lo, 1000 * ends.hi
    return Band(high if math.isfinite(high) else low, low, high)


def quality_of(findings: Iterable[Finding]) -> Band | None:
    """Drop of the criterion that is nearest to its bound, or furthest beyond it."""
    worst = max(findings, key=lambda each: each.percent - each.bound_percent, default=None)
    if worst is None:
        return None
    return Band(worst.percent, worst.interval_percent.low, worst.interval_percent.high)


def happenings_of(look: Look) -> tuple[Happening, ...]:
    """Events of a look; that of the tuner's decision comes first and has its action."""
    at, decision = look.facts.now, look.decision
    action = "" if decision is None else decision.action.value
    return tuple(
        Happening(
            at,
            said.reason,
            said.message,
            said.warning,
            action if said is look.decided else "",
        )
        for said in look.said
    )
