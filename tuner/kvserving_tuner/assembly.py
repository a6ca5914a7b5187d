"""Histories of engines to one observation; shared by all sources, so that they agree."""

import math
from collections.abc import Callable, Iterable, Sequence

from kvserving_tuner import windows
from kvserving_tuner.aliases import SPECS, Kind, Quantity
from kvserving_tuner.epochs import History
from kvserving_tuner.histograms import Histogram, merge
from kvserving_tuner.observation import (
    EngineObservation,
    FleetObservation,
    GaugeWindow,
    Observation,
    Problem,
    ProblemReason,
    Window,
)
from kvserving_tuner.readings import (
    Known,
    Reading,
    Stale,
    Unknown,
    highest,
    mean,
    ratio,
    reading,
    total,
)
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.snapshot import Snapshot

_PROGRESS = (Quantity.GENERATION_TOKENS, Quantity.ITERATIONS, Quantity.FINISHED)


def observe_engine(
    target: str, history: History, settings: Windows, now: float, failure: str | None
) -> tuple[EngineObservation, list[Problem]]:
    """One engine at `now`; `failure` says why the newest attempt to read it failed, if it did."""
    newest = history.newest
    problems: list[Problem] = []
    if failure is not None:
        problems.append(Problem(ProblemReason.METRICS_MISSING, target, failure))
    if newest is None:
        return _nothing(target, failure or "no samples yet"), problems
    problems += _name_problems(target, newest)
    stale = _stale(history, settings, now)
    if stale is not None:
        problems.append(Problem(ProblemReason.METRICS_STALE, target, stale.reason))
    gauges = _gauges(newest, None if stale is None else now - newest.at)
    missing = Unknown(failure) if failure is not None else stale
    minimum = settings.minimum_scrapes
    observation = EngineObservation(
        target=target,
        at=newest.at,
        answered=failure is None,
        ranks=len(newest.ranks),
        epoch_start=history.epoch_start,
        epoch_reason=history.epoch_reason,
        running=gauges["running"],
        waiting=gauges["waiting"],
        kv_usage_max=gauges["kv_usage_max"],
        kv_usage_mean=gauges["kv_usage_mean"],
        capacity_tokens=reading(newest.capacity_tokens, newest.at, "not in the cache's labels"),
        block_size=reading(newest.block_size, newest.at, "not in the cache's labels"),
        max_active_seqs=gauges["max_active_seqs"],
        short=missing or windows.window(history.snapshots, settings.storm_seconds, minimum, 0.0),
        full=missing
        or windows.window(
            history.snapshots, settings.full_seconds, minimum, settings.minimum_coverage
        ),
        prompt_lengths=windows.since_start(newest, Quantity.PROMPT_LENGTHS),
        answer_lengths=windows.since_start(newest, Quantity.ANSWER_LENGTHS),
        totals=_totals(newest),
        names={quantity.value: name for quantity, name in newest.names.items()},
        config=newest.config,
        away_seconds=history.away_seconds,
    )
    return observation, problems


def _stale(history: History, settings: Windows, now: float) -> Unknown | None:
    newest = history.newest
    if newest is not None and now - newest.at > settings.stale_seconds:
        return Unknown(f"newest sample is {now - newest.at:.0f} s old")
    frozen = frozen_seconds(history.snapshots)
    if frozen is not None and frozen >= settings.stale_seconds:
        return Unknown(f"gauges show requests or KV use, but no progress for {frozen:.0f} s")
    return None


def frozen_seconds(snapshots: Sequence[Snapshot]) -> float | None:
    """For how long gauges have shown requests or KV use while no progress counter moved.

    None when there is progress, when nothing is said to run, or when no counter can be read.
    """
    newest = snapshots[-1]
    busy = [
        windows.series([newest], quantity, max)
        for quantity in (Quantity.RUNNING, Quantity.KV_USAGE)
    ]
    if not any(isinstance(value, list) and value[0] > 0 for value in busy):
        return None
    since: float | None = None
    for snapshot in reversed(snapshots):
        moved = _progressed(snapshot, newest)
        if moved is None or moved:
            break
        since = snapshot.at
    return None if since is None else newest.at - since


def _progressed(before: Snapshot, after: Snapshot) -> bool | None:
    grown = [
        value.value > 0
        for value in (windows.increase([before, after], quantity) for quantity in _PROGRESS)
        if isinstance(value, Known)
    ]
    return any(grown) if grown else None


def observe_fleet(engines: Sequence[EngineObservation]) -> FleetObservation:
    """All engines together: counters and queues are summed, KV use is the highest and the mean."""
    full = [engine.full for engine in engines]
    return FleetObservation(
        engines=len(engines),
        answered=sum(engine.answered for engine in engines),
        running=total(engine.running for engine in engines),
        waiting=total(engine.waiting for engine in engines),
        kv_usage_max=highest(engine.kv_usage_max for engine in engines),
        kv_usage_mean=mean(engine.kv_usage_mean for engine in engines),
        generation_tokens_per_second=_rate(full, "generation_tokens"),
        prompt_tokens_per_second=_rate(full, "prompt_tokens"),
        finished_per_second=_rate(full, "finished"),
        preemptions_per_second=_rate(full, "preemptions"),
        prefix_hit_ratio=ratio(_sum(full, "prefix_hits"), _sum(full, "prefix_queries")),
        ttft=_merged(part if isinstance(part, Unknown) else part.ttft for part in full),
        tpot=_merged(part if isinstance(part, Unknown) else part.tpot for part in full),
    )


def observe(
    now: float,
    engines: Sequence[EngineObservation],
    problems: Iterable[Problem],
    thresholds: Thresholds,
) -> Observation:
    """Put engines and problems together; says so when there is simply no traffic."""
    found = list(problems)
    if engines and not found and all(idle(engine.full, thresholds) for engine in engines):
        found.append(Problem(ProblemReason.NO_TRAFFIC, None, "no requests in the last window"))
    return Observation(now, tuple(engines), observe_fleet(engines), tuple(found))


def idle(part: Window | Unknown, thresholds: Thresholds) -> bool:
    """Whether nothing but health checks ran in a window."""
    if isinstance(part, Unknown):
        return False
    running, waiting = part.running, part.waiting
    tokens = part.per_second(part.generation_tokens)
    return (
        isinstance(running, GaugeWindow)
        and isinstance(waiting, GaugeWindow)
        and isinstance(tokens, Known)
        and running.maximum == waiting.maximum == 0
        and tokens.value <= thresholds.idle_tokens_per_second
    )


def _nothing(target: str, reason: str) -> EngineObservation:
    missing = Unknown(reason)
    return EngineObservation(
        target=target,
        at=None,
        answered=False,
        ranks=0,
        epoch_start=None,
        epoch_reason=None,
        running=missing,
        waiting=missing,
        kv_usage_max=missing,
        kv_usage_mean=missing,
        capacity_tokens=missing,
        block_size=missing,
        max_active_seqs=missing,
        short=missing,
        full=missing,
        prompt_lengths=missing,
        answer_lengths=missing,
    )


def _name_problems(target: str, newest: Snapshot) -> list[Problem]:
    if not newest.engine_samples:
        return [
            Problem(ProblemReason.METRICS_MISSING, target, "answers, but exports no vLLM metrics")
        ]
    problems: list[Problem] = []
    for quantity, spec in SPECS.items():
        gap = newest.gaps.get(quantity)
        if gap is None or not spec.required:
            continue
        if gap == "absent":
            tried = ", ".join(alias.name for alias in spec.aliases)
            known = f" ({spec.absent})" if spec.absent else ""
            message = f"no metric for {quantity}: none of {tried}{known}"
            problems.append(Problem(ProblemReason.METRIC_NAME_UNKNOWN, target, message))
        else:
            problems.append(Problem(ProblemReason.METRICS_MISSING, target, gap))
    return problems


def _gauges(newest: Snapshot, stale_age_seconds: float | None) -> dict[str, Reading]:
    def at(quantity: Quantity, over_ranks: Callable[[list[float]], float]) -> Reading:
        values = windows.series([newest], quantity, over_ranks)
        if isinstance(values, Unknown):
            return values
        if stale_age_seconds is not None:
            return Stale(values[0], stale_age_seconds)
        return Known(values[0], newest.at)

    return {
        "running": at(Quantity.RUNNING, math.fsum),
        "waiting": at(Quantity.WAITING, math.fsum),
        "kv_usage_max": at(Quantity.KV_USAGE, max),
        "kv_usage_mean": at(Quantity.KV_USAGE, lambda values: math.fsum(values) / len(values)),
        "max_active_seqs": at(Quantity.MAX_ACTIVE_SEQS, min),
    }


def _totals(newest: Snapshot) -> dict[str, Reading]:
    totals: dict[str, Reading] = {}
    for quantity, spec in SPECS.items():
        if spec.kind is Kind.COUNTER:
            values = windows.series([newest], quantity, math.fsum)
            totals[quantity.value] = (
                values if isinstance(values, Unknown) else Known(values[0], newest.at)
            )
    return totals


def _sum(parts: Sequence[Window | Unknown], name: str) -> Reading:
    return total(part if isinstance(part, Unknown) else getattr(part, name) for part in parts)


def _rate(parts: Sequence[Window | Unknown], name: str) -> Reading:
    return total(
        part if isinstance(part, Unknown) else part.per_second(getattr(part, name))
        for part in parts
    )


def _merged(parts: Iterable[Histogram | Unknown]) -> Histogram | Unknown:
    found: list[Histogram] = []
    for part in parts:
        if isinstance(part, Unknown):
            return part
        found.append(part)
    return merge(found)
