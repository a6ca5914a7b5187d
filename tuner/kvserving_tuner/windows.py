"""Increases, rates and distributions between snapshots of one epoch."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from kvserving_tuner.aliases import Quantity
from kvserving_tuner.histograms import Histogram, merge
from kvserving_tuner.observation import GaugeWindow, Window
from kvserving_tuner.readings import Known, Reading, Unknown
from kvserving_tuner.snapshot import Cumulative, Snapshot


def window(
    snapshots: Sequence[Snapshot], seconds: float, minimum_scrapes: int, minimum_coverage: float
) -> Window | Unknown:
    """The window of the last `seconds` before the newest snapshot.

    Unknown when it holds fewer than `minimum_scrapes` snapshots, or when they span less than
    `minimum_coverage` of it.
    """
    if not snapshots:
        return Unknown("no samples")
    # Scrapers tick with jitter: a sample a little older than the window still belongs to it.
    oldest = snapshots[-1].at - seconds * 1.02
    part = [snapshot for snapshot in snapshots if snapshot.at >= oldest]
    if len(part) < minimum_scrapes:
        return Unknown(f"{len(part)} of {minimum_scrapes} samples in {seconds:g} s")
    span = part[-1].at - part[0].at
    if span < seconds * minimum_coverage:
        return Unknown(f"samples span {span:.0f} of {seconds:g} s")
    ended, failed = outcomes(part)
    return Window(
        start=part[0].at,
        end=part[-1].at,
        scrapes=len(part),
        running=gauge(part, Quantity.RUNNING, math.fsum),
        waiting=gauge(part, Quantity.WAITING, math.fsum),
        kv_usage=gauge(part, Quantity.KV_USAGE, max),
        preemptions=increase(part, Quantity.PREEMPTIONS),
        generation_tokens=increase(part, Quantity.GENERATION_TOKENS),
        prompt_tokens=increase(part, Quantity.PROMPT_TOKENS),
        finished=increase(part, Quantity.FINISHED),
        prefix_queries=increase(part, Quantity.PREFIX_QUERIES),
        prefix_hits=increase(part, Quantity.PREFIX_HITS),
        ttft=distribution(part, Quantity.TTFT),
        tpot=distribution(part, Quantity.TPOT),
        prompt_lengths=distribution(part, Quantity.PROMPT_LENGTHS),
        answer_lengths=distribution(part, Quantity.ANSWER_LENGTHS),
        unexplained_departures=unexplained_departures(part),
        generation_slowdown=generation_slowdown(part),
        ended=ended,
        failed=failed,
        iterations=increase(part, Quantity.ITERATIONS),
        **_arrivals(part),
    )


def series(
    snapshots: Sequence[Snapshot], quantity: Quantity, over_ranks: Callable[[list[float]], float]
) -> list[float] | Unknown:
    """The quantity at each snapshot, its ranks put together by `over_ranks`."""
    values: list[float] = []
    for snapshot in snapshots:
        gap = snapshot.gaps.get(quantity)
        of_ranks = [
            rank.values[quantity] for rank in snapshot.ranks.values() if quantity in rank.values
        ]
        if gap is not None or not of_ranks:
            return Unknown(gap or "absent")
        values.append(over_ranks(of_ranks))
    return values


def gauge(
    snapshots: Sequence[Snapshot], quantity: Quantity, over_ranks: Callable[[list[float]], float]
) -> GaugeWindow | Unknown:
    """The gauge's samples in short; one unreadable sample makes all of it unknown."""
    values = series(snapshots, quantity, over_ranks)
    if isinstance(values, Unknown):
        return values
    ordered = sorted(values)
    return GaugeWindow(
        first=values[0],
        last=values[-1],
        minimum=ordered[0],
        mean=math.fsum(values) / len(values),
        maximum=ordered[-1],
        p95=ordered[math.ceil(0.95 * len(ordered)) - 1],
    )


def increase(snapshots: Sequence[Snapshot], quantity: Quantity) -> Reading:
    """How much a counter grew from the first to the last snapshot, over all ranks."""
    ends = series([snapshots[0], snapshots[-1]], quantity, math.fsum)
    if isinstance(ends, Unknown):
        return ends
    return Known(ends[1] - ends[0], snapshots[-1].at)


def outcomes(snapshots: Sequence[Snapshot]) -> tuple[Reading, Reading]:
    """Requests that ended, and those of them that failed by the engine's fault.

    The server counts statuses, the engine why requests finished. A failure that is not streamed is
    in both, one in the middle of a stream in the latter alone, and what never came to the engine in
    the former alone: the larger number is of failures that there were at least.
    """
    errors = (increase(snapshots, Quantity.HTTP_ERRORS), increase(snapshots, Quantity.FAILED))
    known = [each for each in errors if isinstance(each, Known)]
    answered = increase(snapshots, Quantity.HTTP_REQUESTS)
    if not isinstance(answered, Known):
        answered = increase(snapshots, Quantity.FINISHED)
    if not known or not isinstance(answered, Known):
        return answered, errors[0]
    failed = max(each.value for each in known)
    return Known(max(answered.value, failed), answered.at), Known(failed, answered.at)


def distribution(snapshots: Sequence[Snapshot], quantity: Quantity) -> Histogram | Unknown:
    """What a histogram gained from the first to the last snapshot, over all ranks."""
    return _gained(snapshots[0], snapshots[-1], quantity)


def since_start(snapshot: Snapshot, quantity: Quantity) -> Histogram | Unknown:
    """A histogram over the whole life of the engine."""
    return _gained(None, snapshot, quantity)


def _gained(before: Snapshot | None, after: Snapshot, quantity: Quantity) -> Histogram | Unknown:
    parts: list[Histogram] = []
    for engine, rank in after.ranks.items():
        new = rank.histograms.get(quantity)
        if new is None:
            return Unknown(after.gaps.get(quantity, "absent"))
        old = Cumulative(new.edges, (0.0,) * len(new.edges), 0.0)
        if before is not None:
            found = before.ranks[engine].histograms.get(quantity)
            if found is None:
                return Unknown(before.gaps.get(quantity, "absent"))
            old = found
        part = _difference(old, new)
        if isinstance(part, Unknown):
            return part
        parts.append(part)
    return merge(parts)


def _difference(before: Cumulative, after: Cumulative) -> Histogram | Unknown:
    if before.edges != after.edges:
        return Unknown("bucket edges changed")
    cumulative = [new - old for new, old in zip(after.counts, before.counts, strict=True)]
    counts = [high - low for low, high in pairwise([0.0, *cumulative])]
    # A scrape is not atomic: a value counted between two buckets makes one of them negative.
    if min(counts) < 0:
        return Unknown("buckets disagree")
    return Histogram(after.edges, tuple(counts), after.total - before.total)


def unexplained_departures(snapshots: Sequence[Snapshot]) -> Reading:
    """Requests that left the running set for the queue, by balance instead of by counter."""
    running = series(snapshots, Quantity.RUNNING, math.fsum)
    waiting = series(snapshots, Quantity.WAITING, math.fsum)
    finished = series(snapshots, Quantity.FINISHED, math.fsum)
    for part in (running, waiting, finished):
        if isinstance(part, Unknown):
            return part
    steps = zip(pairwise(running), pairwise(waiting), pairwise(finished), strict=True)  # type: ignore[arg-type]
    return Known(
        math.fsum(
            max(0.0, min(ran - runs - (ended_now - ended), waits - waited))
            for (ran, runs), (waited, waits), (ended, ended_now) in steps
        ),
        snapshots[-1].at,
    )


def _arrivals(snapshots: Sequence[Snapshot]) -> dict[str, Reading]:
    """How many requests came in, and how evenly, from those that ended and those that are there."""
    there: list[list[float]] = []
    for quantity in (Quantity.FINISHED, Quantity.RUNNING, Quantity.WAITING):
        values = series(snapshots, quantity, math.fsum)
        if isinstance(values, Unknown):
            return {"arrived": values, "arrival_dispersion": values}
        there.append(values)
    seen = [math.fsum(parts) for parts in zip(*there, strict=True)]
    # A request that was aborted leaves without finishing: less arrived than left, never below none.
    came = [max(0.0, after - before) for before, after in pairwise(seen)]
    at, total = snapshots[-1].at, math.fsum(came)
    mean = total / len(came)
    if mean <= 0:
        return {"arrived": Known(total, at), "arrival_dispersion": Unknown("nothing arrived")}
    variance = math.fsum((count - mean) ** 2 for count in came) / len(came)
    return {"arrived": Known(total, at), "arrival_dispersion": Known(variance / mean, at)}


def generation_slowdown(snapshots: Sequence[Snapshot]) -> Reading:
    """Tokens per second and running request, second half over first half."""
    middle = len(snapshots) // 2
    rates: list[float] = []
    for half in (snapshots[: middle + 1], snapshots[middle:]):
        tokens = increase(half, Quantity.GENERATION_TOKENS) if len(half) > 1 else Unknown("short")
        running = gauge(half, Quantity.RUNNING, math.fsum)
        if not isinstance(tokens, Known) or isinstance(running, Unknown):
            return Unknown("too few samples")
        if running.mean <= 0:
            return Unknown("nothing runs")
        rates.append(tokens.value / (half[-1].at - half[0].at) / running.mean)
    if rates[0] <= 0:
        return Unknown("nothing was generated")
    return Known(rates[1] / rates[0], snapshots[-1].at)
