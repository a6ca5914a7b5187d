"""Pages as HTML from what the book has; everything that is put in is escaped."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from kvserving_operator.api.v1alpha1 import KVTrial, TrialEvidence, TrialState
from kvserving_operator.web.answers import Answers, Tone, answers
from kvserving_operator.web.book import Book, Entry
from kvserving_operator.web.charts import NARROW, Chart, chart
from kvserving_operator.web.curves import Curve
from kvserving_operator.web.history import Band
from kvserving_operator.web.timeline import WINDOWS, timeline

SLO_QUESTION: Final = "Is the SLO met?"
MOST_NAMED: Final = 5
"""KVServings that an answer about all of them names."""


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One KVServing in the list of all."""

    entry: Entry
    answers: Answers


@dataclass(frozen=True, slots=True)
class Summary:
    """One question about all KVServings: those that an answer is about, by their names."""

    question: str
    tone: Tone
    words: str
    named: tuple[Entry, ...]
    more: int


@dataclass(frozen=True, slots=True)
class CurveView:
    """A curve, laid out."""

    curve: Curve
    chart: Chart


def percent(value: float | None) -> str:
    """A number of percent for people; what nothing bounds is said so."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "not bounded"
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:.0f}"


def band(value: Band | None) -> str:
    """A number with its interval, where it has one."""
    if value is None:
        return "unknown"
    if value.low == value.high:
        return percent(value.value)
    high = f"to {percent(value.high)}" if math.isfinite(value.high) else "or more"
    return f"{percent(value.low)} {high}"


def clock(epoch_seconds: float) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(epoch_seconds: float) -> str:
    """A moment as machines read it."""
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pages:
    """Writes pages."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("kvserving_operator.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"percent": percent, "band": band, "clock": clock, "iso": iso}
        self._environment.globals |= {"windows": tuple(WINDOWS)}

    def fleet(self, book: Book, now: float) -> str:
        """All KVServings."""
        rows = tuple(FleetRow(entry, answers(entry, now)) for entry in book)
        return self._render("fleet.html", now, rows=rows, summaries=summaries(rows))

    def serving(self, entry: Entry, window: str, now: float) -> str:
        """One KVServing, over one of `WINDOWS`."""
        return self._render(
            "serving.html",
            now,
            entry=entry,
            answers=answers(entry, now),
            timeline=timeline(entry, window, now),
            trials=sorted(entry.trials.values(), key=_newest_first, reverse=True),
        )

    def trial(self, book: Book, entry: Entry, trial: KVTrial, now: float) -> str:
        """One trial with its evidence."""
        kept = book.curves(entry.namespace, entry.name, trial.metadata.name)
        curves = () if kept is None else tuple(kept.curves.values())
        return self._render(
            "trial.html",
            now,
            entry=entry,
            trial=trial,
            since=None if kept is None else kept.since,
            curves=tuple(CurveView(curve, curve_chart(curve)) for curve in curves),
            evidence=sorted(trial.status.evidence, key=_gravest_first),
            running=trial.status.state is not TrialState.FINISHED,
        )

    def problem(self, title: str, message: str, now: float) -> str:
        """A page that says why there is none."""
        return self._render("problem.html", now, title=title, message=message)

    def _render(self, template: str, now: float, **context: object) -> str:
        return self._environment.get_template(template).render(now=now, **context)


def summaries(rows: tuple[FleetRow, ...]) -> tuple[Summary, ...]:
    """What is asked first, of all KVServings together."""
    tried = [row.entry for row in rows if row.answers.tried.tone is Tone.BUSY]
    undone = [row.entry for row in rows if row.answers.rolled_back.tone is Tone.BAD]
    missed = [row.entry for row in rows if row.answers.slo.tone is Tone.BAD]
    met = sum(row.answers.slo.tone is Tone.GOOD for row in rows)
    wrong = [row.entry for row in rows if row.answers.attention.tone in (Tone.BAD, Tone.BUSY)]
    slo = f"Missed by {len(missed)} of {len(rows)}" if missed else f"Met by {met} of {len(rows)}"
    slo_tone = Tone.BAD if missed else Tone.GOOD if met else Tone.UNKNOWN
    return (
        _summary("Is anything being tried?", Tone.BUSY, f"{len(tried)} under way", tried),
        _summary("Is anything rolled back?", Tone.BAD, f"{len(undone)} rolled back", undone),
        _summary(SLO_QUESTION, slo_tone, slo, missed),
        _summary("Is a person needed?", Tone.BAD, f"{len(wrong)} need a look", wrong),
    )


def _summary(question: str, tone: Tone, words: str, about: list[Entry]) -> Summary:
    if not about and tone is not Tone.UNKNOWN:
        tone, words = Tone.GOOD, words if question == SLO_QUESTION else "No"
    return Summary(
        question, tone, words, tuple(about[:MOST_NAMED]), max(0, len(about) - MOST_NAMED)
    )


def curve_chart(curve: Curve) -> Chart:
    """How evidence grew, over the numbers behind it."""
    dots = [(float(point.samples), point.band) for point in curve.points]
    return chart(dots, (0.0, dots[-1][0] if dots else 1.0), limit=curve.bound, width=NARROW)


def _newest_first(trial: KVTrial) -> tuple[str, str]:
    return trial.metadata.creation_timestamp or "", trial.metadata.name


def _gravest_first(evidence: TrialEvidence) -> tuple[int, str]:
    order = ("Failed", "Inconclusive", "Passed", "LeftOut")
    place = order.index(evidence.outcome) if evidence.outcome in order else len(order)
    return place, evidence.name
