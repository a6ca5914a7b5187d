"""One KVServing's day as charts, marks and tables; pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvserving_operator.web.answers import targets_of
from kvserving_operator.web.book import Entry
from kvserving_operator.web.charts import Chart, Dot, Mark, chart
from kvserving_operator.web.history import (
    OLDER_SLOT_SECONDS,
    RECENT_SLOT_SECONDS,
    Band,
    Happening,
    Sample,
)

WINDOWS: Final = {"1h": 3600.0, "6h": 21_600.0, "24h": 86_400.0}
"""Stretches of time that can be looked at, in seconds."""
MOST_ROWS: Final = 48
"""Rows of the table that stands for the charts: with more, the worst of each stretch is shown."""

_MARKED: Final = {
    "SettingChanged": "change",
    "Recommended": "other",
    "TrialStarted": "trial",
    "TrialStep": "trial",
    "TrialApproval": "trial",
    "TrialPromoted": "change",
    "TrialRolledBack": "bad",
    "TrialInconclusive": "trial",
    "TrialVoid": "trial",
    "TrialFailed": "bad",
    "QualityRegressed": "bad",
}
"""Events that charts mark, beside all warnings, and of what kind each is."""


@dataclass(frozen=True, slots=True)
class Row:
    """One Event in the table; those in the window that charts mark have a number."""

    happening: Happening
    kind: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its name and what is said of it in words."""

    key: str
    title: str
    unit: str
    chart: Chart
    latest: Band | None
    limit: float | None
    limit_words: str
    empty: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that a window of time shows."""

    window: str
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]
    """Events, the newest first."""
    samples: tuple[Sample, ...]
    """Numbers of the charts, the newest first, thinned out for a table."""


def kind_of(happening: Happening) -> str:
    """Kind of the mark that an Event has in charts; empty where it has none."""
    if happening.action == "Trial":
        return "trial"
    return _MARKED.get(happening.reason) or ("bad" if happening.warning else "")


def timeline(entry: Entry, window: str, now: float) -> Timeline:
    """Lay out what is kept of a window, one of `WINDOWS`, up to `now` in epoch seconds."""
    start = now - WINDOWS[window]
    samples = [sample for sample in entry.series if start <= sample.at <= now]
    rows = tuple(_rows(entry.happenings, start))
    marks = [
        Mark(row.happening.at, row.number, row.kind, f"{row.number}: {row.happening.reason}")
        for row in rows
        if row.number is not None
    ]
    targets = {} if entry.serving is None else targets_of(entry.serving.spec)
    share = "" if entry.serving is None else f"p{entry.serving.spec.slo.percentile}"
    bound = _quality_bound(entry)

    def panel(
        key: str,
        title: str,
        unit: str,
        read: Callable[[Sample], Band | None],
        limit: float | None,
        limit_words: str,
        top: float | None = None,
    ) -> Panel:
        dots: list[Dot] = [(s.at, band) for s in samples if (band := read(s)) is not None]
        # Metrics may be read once a minute; more than twice that is a gap, as is a missing slot.
        gap = max(150.0, 2.5 * (RECENT_SLOT_SECONDS if window == "1h" else OLDER_SLOT_SECONDS))
        drawn = chart(dots, (start, now), limit=limit, top=top, marks=marks, gap=gap, times=True)
        latest = dots[-1][1] if dots else None
        return Panel(key, title, unit, drawn, latest, limit, limit_words, not dots)

    ttft, tpot = targets.get("TTFT"), targets.get("TPOT")
    return Timeline(
        window=window,
        panels=(
            panel("kv", "KV cache use, fullest engine", "%", lambda s: s.kv_use, None, "", 100.0),
            panel("ttft", f"Time to first token, {share}", "ms", lambda s: s.ttft, ttft, "target"),
            panel(
                "tpot", f"Time per output token, {share}", "ms", lambda s: s.tpot, tpot, "target"
            ),
            panel(
                "quality",
                "Drop in quality, criterion nearest its bound",
                "%",
                lambda s: s.quality,
                bound,
                "bound",
            ),
        ),
        rows=tuple(reversed(rows)),
        samples=tuple(reversed(thinned(samples, MOST_ROWS))),
    )


def thinned(samples: Iterable[Sample], most: int) -> list[Sample]:
    """At most so many samples: neighbours are joined to the worst of each number."""
    samples = list(samples)
    size = -(-len(samples) // most) if samples else 1
    joined = []
    for start in range(0, len(samples), size):
        first, *rest = samples[start : start + size]
        for sample in rest:
            first = first.joined(sample)
        joined.append(first)
    return joined


def _rows(happenings: Iterable[Happening], start: float) -> Iterable[Row]:
    number = 0
    for happening in happenings:
        kind = kind_of(happening)
        marked = bool(kind) and happening.at >= start
        number += marked
        yield Row(happening, kind, number if marked else None)


def _quality_bound(entry: Entry) -> float | None:
    """Drop that the policy of the trial under way, or of the latest one, accepts."""
    if entry.record is not None:
        return entry.record.plan.max_drop_percent
    newest = max(
        entry.trials.values(), key=lambda each: each.metadata.creation_timestamp or "", default=None
    )
    return None if newest is None else float(newest.spec.policy.quality.max_drop_percent)
