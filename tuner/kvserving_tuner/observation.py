"""What is known about the engines of one serving at one moment; the only input of a diagnosis.

Values are readings: known, unknown with the reason, or stale. Windows end at the last sample and
never span a restart or a change of settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvserving_tuner.histograms import Histogram
from kvserving_tuner.readings import Known, Reading, Unknown


class ProblemReason(StrEnum):
    """Why something is missing; the values are reasons of the condition MetricsAvailable."""

    METRICS_MISSING = "MetricsMissing"
    """An engine or its metrics cannot be read, or a value is not a number."""
    METRICS_STALE = "MetricsStale"
    """The last sample is too old, or the gauges no longer move while requests are said to run."""
    METRIC_NAME_UNKNOWN = "MetricNameUnknown"
    """The engine exports metrics, but a required one under none of the names known for it."""
    PROMETHEUS_ERROR = "PrometheusError"
    """Prometheus itself cannot be reached or refuses the query."""
    NO_TRAFFIC = "NoTraffic"
    """Nothing is wrong: there are no requests to observe."""

    @property
    def informational(self) -> bool:
        """Whether the observation may still be acted on."""
        return self is ProblemReason.NO_TRAFFIC


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is missing: why, of which engine (None: all), and a sentence for a person."""

    reason: ProblemReason
    target: str | None
    message: str


class EpochReason(StrEnum):
    """Why counters are read from here on and not from before."""

    FIRST_SAMPLE = "FirstSample"
    RESTART = "Restart"
    SETTINGS_CHANGED = "SettingsChanged"
    LABELS_CHANGED = "LabelsChanged"
    CLOCK_STEPPED = "ClockStepped"


@dataclass(frozen=True, slots=True)
class GaugeWindow:
    """A gauge over a window, from its samples; `p95` is the sample of nearest rank."""

    first: float
    last: float
    minimum: float
    mean: float
    maximum: float
    p95: float


@dataclass(frozen=True, slots=True)
class Window:
    """One engine between two of its samples, `start` and `end` in seconds since the epoch.

    Counters are increases. Gauges are sums over the engine's ranks, except KV use, which is that of
    the fullest rank.
    """

    start: float
    end: float
    scrapes: int
    running: GaugeWindow | Unknown
    waiting: GaugeWindow | Unknown
    kv_usage: GaugeWindow | Unknown
    preemptions: Reading
    generation_tokens: Reading
    prompt_tokens: Reading
    finished: Reading
    prefix_queries: Reading
    prefix_hits: Reading
    ttft: Histogram | Unknown
    tpot: Histogram | Unknown
    prompt_lengths: Histogram | Unknown
    answer_lengths: Histogram | Unknown
    unexplained_departures: Reading
    """Requests that left the running set without finishing while the queue grew by as many:
    preemptions the engine's counter has not reported yet (it is delivered with the victim's next
    token)."""
    generation_slowdown: Reading
    """Generation tokens per second and running request in the second half of the window over those
    in the first."""
    ended: Reading
    """Requests that were answered, or that the engine failed to answer."""
    failed: Reading
    """Those of them that failed by the engine's fault."""
    iterations: Reading
    """Engine steps."""
    arrived: Reading
    """Requests that came in, by balance: those that finished and those more that are there now."""
    arrival_dispersion: Reading
    """Variance over mean of the arrivals between two scrapes: 1 where they are independent."""

    @property
    def span_seconds(self) -> float:
        """Length of the window as observed."""
        return self.end - self.start

    def per_second(self, increase: Reading) -> Reading:
        """Rate of one of this window's increases."""
        if isinstance(increase, Known):
            return Known(increase.value / self.span_seconds, increase.at)
        return increase


@dataclass(frozen=True, slots=True)
class EngineObservation:
    """One engine (a pod, or a bare server), all its ranks together."""

    target: str
    at: float | None
    """Time of the newest sample; None if there is none."""
    answered: bool
    """Whether the newest attempt to read it succeeded."""
    ranks: int
    epoch_start: float | None
    epoch_reason: EpochReason | None
    running: Reading
    waiting: Reading
    kv_usage_max: Reading
    kv_usage_mean: Reading
    capacity_tokens: Reading
    """KV cache capacity of one rank in tokens."""
    block_size: Reading
    """Tokens per KV block."""
    max_active_seqs: Reading
    """Cap on running sequences as the engine's plugin reports it in its metrics."""
    short: Window | Unknown
    full: Window | Unknown
    prompt_lengths: Histogram | Unknown
    """Prompt tokens per finished request since the engine started."""
    answer_lengths: Histogram | Unknown
    """Answer tokens per finished request since the engine started."""
    totals: Mapping[str, Reading] = field(default_factory=dict)
    """Counters since the engine started, by quantity name; for reports, never for decisions."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Which of its aliases each quantity was read from."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Labels of the engine's `cache_config_info`: how its cache was configured at the start."""
    away_seconds: float | None = None
    """From the last sample before the newest restart to the first one after it; None if no restart
    was seen."""


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """All engines together, over their full windows; unknown as soon as one engine is."""

    engines: int
    answered: int
    running: Reading
    waiting: Reading
    kv_usage_max: Reading
    kv_usage_mean: Reading
    generation_tokens_per_second: Reading
    prompt_tokens_per_second: Reading
    finished_per_second: Reading
    preemptions_per_second: Reading
    prefix_hit_ratio: Reading
    ttft: Histogram | Unknown
    tpot: Histogram | Unknown


@dataclass(frozen=True, slots=True)
class Observation:
    """All engines of one serving at `at`, seconds since the epoch, with what is missing."""

    at: float
    engines: tuple[EngineObservation, ...]
    fleet: FleetObservation
    problems: tuple[Problem, ...] = ()

    def blocking(self) -> tuple[Problem, ...]:
        """Problems that forbid acting on this observation."""
        return tuple(problem for problem in self.problems if not problem.reason.informational)
