"""A load in a few numbers, from the windows of the engines that serve it."""

import math
from collections.abc import Sequence

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, Window
from kvserving_tuner.readings import Unknown, known
from kvserving_tuner.remembered import Fingerprint

FIELDS = ("rate", "prompt_tokens", "answer_tokens")
"""What tells loads apart. Burstiness and the hit ratio are noisy in one window, and follow the
settings as much as the load: they are kept to be shown."""
LEAST_FINISHED = 5
"""Finished requests below which lengths of one window are noise."""


def fingerprint(engines: Sequence[EngineObservation]) -> Fingerprint | None:
    """The load of all engines together; None where a window is missing or too little finished.

    The rate is that of one engine on average: another number of engines is no other load to each.
    """
    windows = [engine.full for engine in engines]
    full = [window for window in windows if isinstance(window, Window)]
    if not full or len(full) < len(windows):
        return None
    arrived = _total([known(window.arrived) for window in full])
    prompts = _mean([window.prompt_lengths for window in full])
    answers = _mean([window.answer_lengths for window in full])
    if arrived is None or prompts is None or answers is None or arrived <= 0:
        return None
    seconds = math.fsum(window.span_seconds for window in full)
    dispersions = [known(window.arrival_dispersion) for window in full]
    spread = _total(dispersions)
    queries = _total([known(window.prefix_queries) for window in full])
    hits = _total([known(window.prefix_hits) for window in full])
    return Fingerprint(
        rate=arrived / seconds,
        prompt_tokens=prompts,
        answer_tokens=answers,
        dispersion=None if spread is None else spread / len(full),
        hit_ratio=hits / queries if hits is not None and queries else None,
    )


def logarithms(load: Fingerprint) -> tuple[float, ...]:
    """The numbers that tell loads apart, as logarithms: ratios count, not differences."""
    return tuple(math.log(max(getattr(load, name), 1e-9)) for name in FIELDS)


def distance(one: Fingerprint, other: Fingerprint) -> float:
    """How far two loads are apart: the largest logarithm of a ratio of their numbers."""
    pairs = zip(logarithms(one), logarithms(other), strict=True)
    return max(abs(first - second) for first, second in pairs)


def average(before: Fingerprint, windows: int, new: Fingerprint) -> Fingerprint:
    """The mean of so many windows and one more."""
    share = 1 / (windows + 1)

    def mixed(name: str) -> float | None:
        old, fresh = getattr(before, name), getattr(new, name)
        if old is None or fresh is None:
            known_one = old if fresh is None else fresh
            return None if known_one is None else float(known_one)
        return float(old) + share * (float(fresh) - float(old))

    return Fingerprint.model_validate({name: mixed(name) for name in Fingerprint.model_fields})


def _total(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return math.fsum(found) if found and len(found) == len(values) else None


def _mean(lengths: Sequence[Histogram | Unknown]) -> float | None:
    found = [each for each in lengths if isinstance(each, Histogram)]
    count = math.fsum(each.count for each in found)
    if len(found) < len(lengths) or count < LEAST_FINISHED:
        return None
    return math.fsum(each.total for each in found) / count
