"""The questions that are asked first, answered from what is kept of a KVServing; pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvserving_operator.api.conditions import ConditionStatus, find_condition
from kvserving_operator.api.reasons import ConditionType
from kvserving_operator.api.v1alpha1 import KVServingSpec
from kvserving_operator.web.book import Entry
from kvserving_operator.web.history import Band

STALE_SECONDS: Final = 120.0
"""Age from which numbers say nothing of now: two windows of metrics."""


class Tone(StrEnum):
    """How an answer is to be read; always written out as well."""

    GOOD = "good"
    BAD = "bad"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: a few words, and a sentence with the why."""

    tone: Tone
    words: str
    detail: str = ""
    trial: str = ""
    """Name of the KVTrial that it is about."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a platform engineer asks first."""

    tried: Answer
    rolled_back: Answer
    slo: Answer
    attention: Answer


def answers(entry: Entry, now: float) -> Answers:
    """Answer for one KVServing at `now`, in seconds since the epoch."""
    return Answers(_tried(entry), _rolled_back(entry), _slo(entry, now), _attention(entry))


def _tried(entry: Entry) -> Answer:
    record = entry.record
    if record is not None:
        progress = record.progress
        words = f"Yes: {record.change}"
        said = f"{progress.state.value}"
        if progress.candidates:
            said += f", step {progress.step} ({record.plan.steps[progress.step]} %)"
        held = progress.held or progress.note
        return Answer(Tone.BUSY, words, f"{said}; {held}" if held else said, record.name)
    waiting = entry.status.recommendation
    if waiting is not None:
        change = f"{waiting.knob} {waiting.from_value} -> {waiting.to_value}"
        return Answer(Tone.UNKNOWN, "No; a change is recommended", f"{change}: {waiting.message}")
    return Answer(Tone.GOOD, "No")


def _rolled_back(entry: Entry) -> Answer:
    condition = find_condition(entry.status.conditions, ConditionType.ROLLED_BACK)
    last = next((v for v in reversed(entry.status.verdicts) if v.verdict == "RolledBack"), None)
    trial = "" if last is None else last.trial
    if condition is not None and condition.status is ConditionStatus.TRUE:
        return Answer(Tone.BAD, "Yes, and the spec still asks for it", condition.message, trial)
    if last is not None:
        why = f", {last.reason}" if last.reason else ""
        detail = f"Last: {last.field} {last.value}, {last.at}{why}"
        return Answer(Tone.UNKNOWN, "Not now", detail, trial)
    return Answer(Tone.GOOD, "No")


def _slo(entry: Entry, now: float) -> Answer:
    if entry.serving is None:
        return Answer(Tone.UNKNOWN, "Unknown", "the spec cannot be read")
    targets = targets_of(entry.serving.spec)
    if not targets:
        return Answer(Tone.UNKNOWN, "No target is set", "spec.slo names neither TTFT nor TPOT")
    latest = entry.series.latest
    if latest is None or now - latest.at > STALE_SECONDS:
        return Answer(Tone.UNKNOWN, "Unknown", "no fresh metrics")
    bands = {"TTFT": latest.ttft, "TPOT": latest.tpot}
    percentile = entry.serving.spec.slo.percentile
    found = [judged(name, bands[name], target, percentile) for name, target in targets.items()]
    return joined(found)


def targets_of(spec: KVServingSpec) -> dict[str, int]:
    """Targets of `spec.slo` that there are, in milliseconds, by the latency's name."""
    named = {"TTFT": spec.slo.ttft_milliseconds, "TPOT": spec.slo.tpot_milliseconds}
    return {name: target for name, target in named.items() if target is not None}


def judged(name: str, band: Band | None, target: int, percentile: int) -> Answer:
    """One latency against its target; known only up to a bucket of the engine's histogram."""
    if band is None:
        return Answer(Tone.UNKNOWN, "Unknown", f"{name}: no requests in the last minute")
    detail = f"{name} p{percentile} {span(band)}, target {target} ms"
    if band.high <= target:
        return Answer(Tone.GOOD, "Met", detail)
    if band.low >= target:
        return Answer(Tone.BAD, "Missed", detail)
    return Answer(Tone.UNKNOWN, "Too close to tell", detail)


def span(band: Band) -> str:
    """Milliseconds in words."""
    if band.high == float("inf"):
        return f"above {band.low:g} ms"
    return f"{band.high:g} ms" if band.low == band.high else f"{band.low:g} to {band.high:g} ms"


def joined(found: Iterable[Answer]) -> Answer:
    """The worst of some answers, with the details of all."""
    found = list(found)
    order = (Tone.BAD, Tone.UNKNOWN, Tone.GOOD)
    worst = min(found, key=lambda each: order.index(each.tone))
    return Answer(worst.tone, worst.words, "; ".join(each.detail for each in found))


def _attention(entry: Entry) -> Answer:
    """Whether a person is needed, or the tuner holds for want of data."""
    conditions = entry.status.conditions
    degraded = find_condition(conditions, ConditionType.DEGRADED)
    if degraded is not None and degraded.status is ConditionStatus.TRUE:
        return Answer(Tone.BAD, f"Yes: {degraded.reason}", degraded.message)
    ready = find_condition(conditions, ConditionType.READY)
    if ready is not None and ready.status is ConditionStatus.FALSE:
        return Answer(Tone.BUSY, f"Not serving: {ready.reason}", ready.message)
    metrics = find_condition(conditions, ConditionType.METRICS_AVAILABLE)
    if metrics is not None and metrics.status is ConditionStatus.FALSE:
        return Answer(Tone.BAD, f"The tuner holds: {metrics.reason}", metrics.message)
    return Answer(Tone.GOOD, "No")
