"""Goodput of an engine: requests that were answered within the targets of latency."""

from kvserving_tuner.histograms import Histogram, Interval
from kvserving_tuner.observation import Window
from kvserving_tuner.readings import Known, Unknown
from kvserving_tuner.settings import Slo


def goodput(window: Window, slo: Slo) -> float | None:
    """Requests finished within every target, per second; None where that cannot be told.

    Engines export a distribution of each latency, not of both together: the smaller of the shares
    within is the largest that both can have in common. A target between two edges of buckets counts
    as the upper one, in both arms alike.
    """
    if not isinstance(window.finished, Known):
        return None
    if not window.finished.value:
        return 0.0
    share = 1.0
    for target_ms, latencies in ((slo.ttft_ms, window.ttft), (slo.tpot_ms, window.tpot)):
        if target_ms is None:
            continue
        within = _share_within(latencies, target_ms / 1000)
        if within is None:
            return None
        share = min(share, within)
    return share * window.finished.value / window.span_seconds


def _share_within(latencies: Histogram | Unknown, seconds: float) -> float | None:
    if isinstance(latencies, Unknown):
        return None
    above = latencies.share_above(seconds)
    # Answers of one token have no time per further token, and miss no target of it.
    return 1 - above.lo if isinstance(above, Interval) else 1.0
