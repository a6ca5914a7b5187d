"""A log as points in time and decisions; pure but for reading the file.

A recording (`tune --record`) has what engines exported, and figures follow from it as the loop saw
them. An audit log has decisions alone: its figures are the numbers behind them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kvserving_tuner import audit, recording
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import FleetObservation
from kvserving_tuner.readings import Reading, Unknown, known
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.sources.base import EngineTarget, Histories

HOLD: Final = "Hold"
NUMBERS: Final[Mapping[str, str]] = {
    "kv_usage_max": "kv_usage",
    "running_mean": "running",
    "waiting_mean": "waiting",
}
"""Numbers behind a decision that are figures of a point."""
COUNTS: Final[Mapping[str, str]] = {
    "generation_tokens": "tokens_per_second",
    "preemptions": "preemptions_per_second",
    "finished": "finished_per_second",
}
"""Numbers that were counted over `window_seconds`."""


@dataclass(frozen=True)
class Point:
    """One look at all engines. A figure that is not known is left out."""

    at: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Told:
    """One decision, or as many alike that followed each other."""

    at: float
    document: Mapping[str, Any]
    times: int = 1

    @property
    def acted(self) -> bool:
        """Whether something was changed, tried or recommended."""
        return str(self.document.get("action")) != HOLD


@dataclass(frozen=True)
class History:
    """What a log tells."""

    name: str
    points: tuple[Point, ...] = ()
    decisions: tuple[Told, ...] = ()
    turns: int = 0
    servings: tuple[str, ...] = field(default=())
    """What an audit log is about; the report shows one."""

    def series(self, name: str) -> tuple[list[float], list[float | None]]:
        """Times and values of a figure, None where it is not known."""
        return [p.at for p in self.points], [p.figures.get(name) for p in self.points]

    def has(self, name: str) -> bool:
        """Whether a figure is known anywhere."""
        return any(name in point.figures for point in self.points)


def read_history(path: Path, percentile: float = 95, serving: str | None = None) -> History:
    """Read a recording or an audit log; SettingsError for a file that is neither.

    Latencies are at `percentile`. An audit log of several servings needs the name of one.
    """
    schemas = {document.get("schema") for _, document in recording.documents(path)}
    if recording.SCHEMA in schemas:
        return _recorded(path, percentile)
    if audit.SCHEMA in schemas:
        return _audited(path, serving)
    raise SettingsError(f"{path}: expected observations or audit lines, got none")


def _recorded(path: Path, percentile: float) -> History:
    histories = Histories(Windows(), Thresholds())
    points, documents = [], []
    for turn in recording.recorded(path):
        targets = [EngineTarget(name, name) for name in turn.read]
        fleet = histories.update(targets, turn.read, turn.at).fleet
        figures = _figures(fleet, percentile)
        caps = [each.effective.max_active_seqs for each in turn.runtime]
        numbers = [cap for cap in caps if cap is not None]
        if numbers:
            figures["cap"] = float(min(numbers))
        points.append(Point(turn.at, figures))
        documents.append((turn.at, turn.decision))
    return History(path.name, tuple(points), _told(documents), len(points))


def _figures(fleet: FleetObservation, percentile: float) -> dict[str, float]:
    readings: dict[str, Reading] = {
        "kv_usage": fleet.kv_usage_max,
        "running": fleet.running,
        "waiting": fleet.waiting,
        "tokens_per_second": fleet.generation_tokens_per_second,
        "prompt_tokens_per_second": fleet.prompt_tokens_per_second,
        "finished_per_second": fleet.finished_per_second,
        "preemptions_per_second": fleet.preemptions_per_second,
    }
    found = {name: known(reading) for name, reading in readings.items()}
    found["ttft_seconds"] = _percentile(fleet.ttft, percentile)
    found["tpot_seconds"] = _percentile(fleet.tpot, percentile)
    return {name: value for name, value in found.items() if value is not None}


def _percentile(histogram: Histogram | Unknown, percentile: float) -> float | None:
    """The upper bound of a percentile: what is certainly kept; None where there is none."""
    if isinstance(histogram, Unknown):
        return None
    bounds = histogram.quantile(percentile / 100)
    if isinstance(bounds, Unknown):
        return None
    return bounds.hi if math.isfinite(bounds.hi) else bounds.lo


def _audited(path: Path, serving: str | None) -> History:
    lines = list(_audit_lines(path))
    names = tuple(dict.fromkeys(name for name, _, _ in lines))
    if serving is None and len(names) > 1:
        raise SettingsError(f"--serving: expected one of {', '.join(names)}, got none")
    chosen = serving or (names[0] if names else "")
    if chosen not in names:
        raise SettingsError(f"--serving: expected one of {', '.join(names)}, got {chosen}")
    own = [(at, document) for name, at, document in lines if name == chosen]
    points = tuple(Point(at, _numbers(document)) for at, document in own)
    return History(chosen, points, _told(own), len(own), names)


def _audit_lines(path: Path) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    for number, document in recording.documents(path):
        if document.get("schema") != audit.SCHEMA or "diagnosis" not in document:
            continue
        try:
            yield str(document.get("serving", "")), float(document["at"]), document
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"{path}: line {number} is no audit line: {error!r}") from error


def _numbers(document: Mapping[str, Any]) -> dict[str, float]:
    numbers = document.get("numbers")
    if not isinstance(numbers, Mapping):
        return {}
    finite = {
        str(name): float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    found = {NUMBERS[name]: value for name, value in finite.items() if name in NUMBERS}
    seconds = finite.get("window_seconds", 0.0)
    if seconds > 0:
        found |= {COUNTS[name]: n / seconds for name, n in finite.items() if name in COUNTS}
    return found


def _told(documents: list[tuple[float, Mapping[str, Any]]]) -> tuple[Told, ...]:
    """Decisions in order; holds for the same reason that follow each other are told once."""
    told: list[Told] = []
    for at, document in documents:
        last = told[-1] if told else None
        alike = last is not None and not last.acted and _kind(last.document) == _kind(document)
        if last is not None and alike:
            told[-1] = Told(last.at, last.document, last.times + 1)
        else:
            told.append(Told(at, document))
    return tuple(told)


def _kind(document: Mapping[str, Any]) -> tuple[str, ...]:
    diagnosis = document.get("diagnosis")
    found = diagnosis.get("kind") if isinstance(diagnosis, Mapping) else ""
    return str(document.get("action")), str(document.get("reason")), str(found)
