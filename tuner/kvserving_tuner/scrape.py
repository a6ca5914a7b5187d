"""Prometheus exposition text to samples; text that is none is a problem to report, not an error."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvserving_tuner.aliases import SAMPLE_NAMES

MAXIMUM_BYTES = 8 * 1024 * 1024
"""An engine with 16 ranks exports well under 1 MiB; more than this is not an engine's metrics."""
ENGINE_PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series' value at the time of its scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of interest of one target at `at`, seconds since the epoch.

    `engine_samples` counts all samples of the engine, of interest or not: none at all means that
    this is no engine, some but not the required ones that they have other names.
    """

    at: float
    samples: tuple[Sample, ...]
    engine_samples: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a target's answer is not metrics."""

    reason: str


def parse_exposition(text: str) -> tuple[Sample, ...]:
    """All samples of an exposition; raises whatever the parser raises where it is malformed."""
    return tuple(
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


def parse(text: str, at: float) -> Scrape | Unreadable:
    """Read one exposition, keeping the samples that some quantity may be read from."""
    if len(text) > MAXIMUM_BYTES:
        return Unreadable(f"longer than {MAXIMUM_BYTES} bytes")
    try:
        return collect(parse_exposition(text), at)
    # The parser raises whatever its string handling raises: ValueError, IndexError, KeyError.
    except Exception as error:
        return Unreadable(f"not Prometheus text: {error}")


def collect(samples: Iterable[Sample], at: float) -> Scrape:
    """Keep the samples of interest and count the engine's."""
    kept: list[Sample] = []
    engine_samples = 0
    for sample in samples:
        engine_samples += sample.name.startswith(ENGINE_PREFIX)
        if sample.name in SAMPLE_NAMES:
            kept.append(sample)
    return Scrape(at, tuple(kept), engine_samples)
