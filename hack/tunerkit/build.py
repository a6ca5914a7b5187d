"""Observations made up from the few figures a test is about."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvserving_tuner.assembly import observe
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import (
    EngineObservation,
    EpochReason,
    GaugeWindow,
    Observation,
    Problem,
    Window,
)
from kvserving_tuner.readings import Known, Reading, Unknown
from kvserving_tuner.runtime_client import Capacity, Effective, RuntimeState
from kvserving_tuner.settings import Thresholds

NOW = 10_000.0
NOT_MEASURED = Unknown("not measured")
EDGES = (50.0, 100.0, 200.0, 500.0, 1000.0, math.inf)


def gauge(value: float, maximum: float | None = None, last: float | None = None) -> GaugeWindow:
    """A gauge with mean `value`."""
    high = value if maximum is None else maximum
    return GaugeWindow(value, value if last is None else last, value, value, high, high)


def lengths(mean: float, count: float = 100) -> Histogram:
    """Lengths that are all about `mean` tokens."""
    bucket = next(index for index, edge in enumerate(EDGES) if mean <= edge)
    counts = tuple(count if index == bucket else 0.0 for index in range(len(EDGES)))
    return Histogram(EDGES, counts, mean * count)


def window(
    seconds: float = 60,
    running: float = 8,
    waiting: float = 5,
    usage: float = 0.5,
    usage_max: float | None = None,
    preemptions: float = 0,
    finished: float | None = 20,
    tokens: float = 5000,
    *,
    end: float = NOW,
    departures: float = 0,
    slowdown: float = 1.0,
    tpot: Histogram | Unknown = NOT_MEASURED,
    prompts: Histogram | Unknown = NOT_MEASURED,
    answers: Histogram | Unknown = NOT_MEASURED,
    running_last: float | None = None,
    failed: float | None = 0,
    iterations: float | None = None,
    arrived: float | None = None,
    ttft: Histogram | Unknown = NOT_MEASURED,
    prompt_tokens: float = 0,
    prefix: tuple[float, float] = (0, 0),
) -> Window:
    """A window that ends at `end`."""

    def known(value: float | None) -> Reading:
        return Unknown("absent") if value is None else Known(value, end)

    return Window(
        start=end - seconds,
        end=end,
        scrapes=max(3, int(seconds / 5) + 1),
        running=gauge(running, last=running_last),
        waiting=gauge(waiting),
        kv_usage=gauge(usage, usage_max),
        preemptions=known(preemptions),
        generation_tokens=known(tokens),
        prompt_tokens=known(prompt_tokens),
        finished=known(finished),
        prefix_queries=known(prefix[0]),
        prefix_hits=known(prefix[1]),
        ttft=ttft,
        tpot=tpot,
        prompt_lengths=prompts,
        answer_lengths=answers,
        unexplained_departures=known(departures),
        generation_slowdown=known(slowdown),
        ended=known(finished),
        failed=known(failed),
        iterations=known(iterations),
        arrived=known(finished if arrived is None else arrived),
        arrival_dispersion=known(1.0),
    )


def engine(
    full: Window | Unknown,
    short: Window | Unknown | None = None,
    name: str = "a",
    ranks: int = 1,
    capacity: float | None = 4000,
    prompts: Histogram | Unknown = NOT_MEASURED,
    answers: Histogram | Unknown = NOT_MEASURED,
) -> EngineObservation:
    """One engine; without `short`, its short window is calm."""
    of = full if isinstance(full, Window) else window()
    if short is None:
        short = replace(of, start=of.end - 20, preemptions=Known(0, of.end))

    def now(value: GaugeWindow | Unknown) -> Reading:
        return value if isinstance(value, Unknown) else Known(value.last, of.end)

    return EngineObservation(
        target=name,
        at=of.end,
        answered=True,
        ranks=ranks,
        epoch_start=of.start,
        epoch_reason=EpochReason.FIRST_SAMPLE,
        running=now(of.running),
        waiting=now(of.waiting),
        kv_usage_max=now(of.kv_usage),
        kv_usage_mean=now(of.kv_usage),
        capacity_tokens=Unknown("absent") if capacity is None else Known(capacity, of.end),
        block_size=Known(16, of.end),
        max_active_seqs=Unknown("absent"),
        short=short,
        full=full,
        prompt_lengths=prompts,
        answer_lengths=answers,
    )


def observation(
    *engines: EngineObservation, problems: Sequence[Problem] = (), at: float = NOW
) -> Observation:
    """An observation of these engines."""
    return observe(at, engines, problems, Thresholds())


def runtime(caps: Mapping[str, int], minimum: int = 1, maximum: int = 64) -> list[RuntimeState]:
    """What engines with these caps answer."""
    return [
        RuntimeState(
            target=name,
            effective=Effective(kv_cache_dtype="bfloat16", max_active_seqs=cap),
            envelope={"max_active_seqs": {"minimum": minimum, "maximum": maximum}},
            capacity=Capacity(),
        )
        for name, cap in caps.items()
    ]
