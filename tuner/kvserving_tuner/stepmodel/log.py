"""What a recorded log of a real engine says of its step times; pure but for reading the file."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, GaugeWindow, Window
from kvserving_tuner.readings import Unknown, known
from kvserving_tuner.recording import recorded
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.simulator.steptimes import StepTimes
from kvserving_tuner.sources.base import EngineTarget, Histories
from kvserving_tuner.stepmodel.corrected import Correction, StepWindow, corrected

LEAST_COUNT: Final = 10
"""Fewer answers, or gaps between tokens, whichever an engine counts, say little of a mean."""
SETTLE_SECONDS: Final = 120.0
"""After a change caches are cold and graphs are new."""


def corrected_by_log(path: Path, times: StepTimes, bytes_per_token: float) -> Correction:
    """What a log teaches about these step times; SettingsError for a file that is no log.

    `bytes_per_token` is that of the format in which the engine stores. Windows in which something
    was changed teach nothing, nor do the first ones after it.
    """
    return corrected(windows(path, times, bytes_per_token))


def applied(times: StepTimes, correction: Correction) -> StepTimes:
    """Step times with a correction in them."""
    return replace(
        times,
        base_seconds=times.base_seconds * correction.fixed,
        prefill_token_seconds=times.prefill_token_seconds * correction.growing,
        prefill_pair_seconds=times.prefill_pair_seconds * correction.growing,
        sequence_seconds=times.sequence_seconds * correction.growing,
        cache_byte_seconds=times.cache_byte_seconds * correction.growing,
    )


def windows(path: Path, times: StepTimes, bytes_per_token: float) -> Iterator[StepWindow]:
    """Full windows of a log that do not overlap, as a model of these times sees them."""
    histories = Histories(Windows(), Thresholds())
    after: dict[str, float] = {}
    settled = 0.0
    for turn in recorded(path):
        targets = [EngineTarget(name, name) for name in turn.read]
        engines = histories.update(targets, turn.read, turn.at).engines
        if turn.decision.get("action") not in ("Hold", "Recommend"):
            settled = turn.at + SETTLE_SECONDS
        yield from _new(engines, after, settled, times, bytes_per_token)


def _new(
    engines: Sequence[EngineObservation],
    after: dict[str, float],
    settled: float,
    times: StepTimes,
    bytes_per_token: float,
) -> Iterator[StepWindow]:
    for engine in engines:
        full = engine.full
        if not isinstance(full, Window):
            continue
        if full.start < max(settled, after.get(engine.target, 0.0)):
            continue
        found = seen(engine, full, times, bytes_per_token)
        if found is not None:
            after[engine.target] = full.end
            yield found


def seen(
    engine: EngineObservation, full: Window, times: StepTimes, bytes_per_token: float
) -> StepWindow | None:
    """One window of one engine; None where something that it takes is not known."""
    capacity, prompts = known(engine.capacity_tokens), known(full.prompt_tokens)
    running, usage = full.running, full.kv_usage
    if not isinstance(running, GaugeWindow) or not isinstance(usage, GaugeWindow):
        return None
    if not isinstance(full.tpot, Histogram) or full.tpot.count < LEAST_COUNT:
        return None
    step = full.tpot.mean
    if isinstance(step, Unknown) or capacity is None or prompts is None or full.span_seconds <= 0:
        return None
    cached = known(full.prefix_hits) or 0.0
    prompt_tokens = max(0.0, prompts - cached) / full.span_seconds * step
    growing = (
        running.mean * times.sequence_seconds
        + usage.mean * capacity * bytes_per_token * times.cache_byte_seconds
        + prompt_tokens * times.prefill_token_seconds
    )
    return StepWindow(times.base_seconds, growing, step)
