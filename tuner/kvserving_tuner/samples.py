"""Full windows as they are kept: for comparisons, for the cost of trying, and for the model."""

import math
from collections.abc import Sequence

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.ladder.situation import late
from kvserving_tuner.observation import EngineObservation, GaugeWindow, Window
from kvserving_tuner.readings import known
from kvserving_tuner.remembered import Account, Sample, Watch
from kvserving_tuner.rules import DAY_SECONDS
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.goodput import goodput

MOST_SAMPLES = 16
"""Windows that are kept: a quarter of an hour."""


def sample(
    engines: Sequence[EngineObservation], slo: Slo, not_before: float | None
) -> Sample | None:
    """The engines' full windows in short; None unless all have one that begins late enough."""
    windows = [each.full for each in engines if isinstance(each.full, Window)]
    if not windows or len(windows) < len(engines):
        return None
    if not_before is not None and min(window.start for window in windows) < not_before:
        return None
    rates = [goodput(window, slo) for window in windows]
    running = [w.running.mean for w in windows if isinstance(w.running, GaugeWindow)]
    waiting = [w.waiting.mean for w in windows if isinstance(w.waiting, GaugeWindow)]
    tokens = [known(window.per_second(window.generation_tokens)) for window in windows]
    preempted = [known(window.per_second(window.preemptions)) for window in windows]
    finished = [known(window.finished) for window in windows]
    counted = [_sum(values) for values in (rates, tokens, preempted, finished)]
    if len(running) < len(windows) or len(waiting) < len(windows):
        return None
    good, generated, preemptions, ended = counted
    if good is None or generated is None or preemptions is None or ended is None:
        return None
    ranks = sum(each.ranks for each in engines)
    return Sample(
        at=max(window.end for window in windows),
        goodput=good,
        missed=_missed(windows, slo),
        tokens_per_second=generated,
        waiting=math.fsum(waiting),
        running=math.fsum(running) / max(1, ranks),
        preemptions_per_second=preemptions,
        finished=ended,
        step_seconds=_step_seconds(windows),
    )


def charged(account: Account, new: Sample, watch: Watch | None, now: float) -> Account:
    """The day's account after one more window."""
    day = int(now // DAY_SECONDS)
    if day != account.day:
        account = Account(day=day)
    missed = new.missed or 0.0
    explored = account.explored
    if watch is not None:
        usual = [each.missed or 0.0 for each in watch.before]
        before = math.fsum(usual) / len(usual) if usual else 0.0
        explored += max(0.0, missed - before) * new.finished
    return Account(
        day=day,
        requests=account.requests + new.finished,
        missed=account.missed + missed * new.finished,
        explored=explored,
    )


def _missed(windows: Sequence[Window], slo: Slo) -> float | None:
    """Share of requests that certainly miss a target; None where none is set."""
    if slo.ttft_ms is None and slo.tpot_ms is None:
        return None
    first = late([window.ttft for window in windows], slo.ttft_ms, slo.missed_share)
    each = late([window.tpot for window in windows], slo.tpot_ms, slo.missed_share)
    return max(first.least, each.least)


def _step_seconds(windows: Sequence[Window]) -> float | None:
    found = [window.tpot for window in windows if isinstance(window.tpot, Histogram)]
    count = math.fsum(each.count for each in found)
    return math.fsum(each.total for each in found) / count if count else None


def _sum(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return math.fsum(found) if len(found) == len(values) else None
