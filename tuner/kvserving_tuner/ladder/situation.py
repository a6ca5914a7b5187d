"""What the ladder looks at: an observation, what engines say of themselves, what is remembered."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvserving_kernels.formats import ALIASES
from kvserving_tuner.decision import Diagnosis, DiagnosisKind, Reason
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, GaugeWindow, Window
from kvserving_tuner.readings import Unknown, known
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import TuningSettings
from kvserving_tuner.state import TunerState

AUTO = "auto"
_LABELS = {"prefix_caching": "enable_prefix_caching"}
"""Start settings by the label of `cache_config_info` that has them on any engine."""
_CAP_HELD_BY_CACHE = frozenset({Reason.KV_WOULD_FILL, Reason.CEILING_REMEMBERED})
_BOUND = frozenset({DiagnosisKind.PREEMPTION_STORM, DiagnosisKind.KV_PRESSURE})


@dataclass(frozen=True, slots=True)
class Situation:
    """One look; `cap_reason` and `cap_message` are what the rules of the cap say of it."""

    settings: TuningSettings
    engines: tuple[EngineObservation, ...]
    runtime: tuple[RuntimeState, ...]
    diagnosis: Diagnosis
    cap: int | None
    cap_reason: Reason
    cap_message: str
    state: TunerState
    now: float

    @property
    def windows(self) -> tuple[Window, ...]:
        """Full windows of the engines that have one."""
        return tuple(each.full for each in self.engines if isinstance(each.full, Window))

    @property
    def dtype(self) -> str | None:
        """Format in effect on all engines; None where they differ or none says it."""
        told: set[str | None] = {each.effective.kv_cache_dtype for each in self.runtime}
        # An engine without the runtime API keeps the format that it was started with.
        found = told or {each.config.get("cache_dtype") for each in self.engines}
        name = found.pop() if len(found) == 1 else None
        return None if name is None else ALIASES.get(name, name)

    def started_with(self, name: str) -> object:
        """A start setting that all engines have in common; None where they do not say."""
        found = [each.startup.get(name) for each in self.runtime]
        if not found and name in _LABELS:
            found = [_told(each.config.get(_LABELS[name])) for each in self.engines]
        return found[0] if found and all(each == found[0] for each in found) else None

    def version(self) -> tuple[int, int] | None:
        """Oldest vLLM among the engines; None where one does not say."""
        versions = [_version(each.versions.get("vllm")) for each in self.runtime]
        known_ones = [each for each in versions if each is not None]
        return min(known_ones) if known_ones and len(known_ones) == len(versions) else None

    @property
    def running(self) -> float:
        """Mean running sequences per rank."""
        return self._per_rank([window.running for window in self.windows])

    @property
    def waiting(self) -> float:
        """Mean waiting requests per rank."""
        return self._per_rank([window.waiting for window in self.windows])

    def late(self, latencies: Sequence[Histogram | Unknown], target_ms: float | None) -> "Late":
        """How many requests miss a target of latency."""
        return late(latencies, target_ms, self.settings.slo.missed_share)

    @property
    def ttft(self) -> "Late":
        """Requests whose first token is late."""
        return self.late([window.ttft for window in self.windows], self.settings.slo.ttft_ms)

    @property
    def tpot(self) -> "Late":
        """Requests whose tokens follow each other too slowly."""
        return self.late([window.tpot for window in self.windows], self.settings.slo.tpot_ms)

    @property
    def recomputed_share(self) -> float:
        """Share of all computed tokens that are computed again after preemptions."""
        recomputed = computed = 0.0
        for window in self.windows:
            preemptions, finished = known(window.preemptions), known(window.finished)
            tokens = [known(window.prompt_tokens), known(window.generation_tokens)]
            if preemptions is None or not finished or None in tokens:
                continue
            total = math.fsum(value for value in tokens if value is not None)
            computed += total
            recomputed += preemptions * total / finished
        return min(0.5, recomputed / (computed + recomputed)) if recomputed else 0.0

    def binding(self) -> tuple[bool, str]:
        """Whether the KV cache is what holds requests back, and what shows that."""
        kind, message = self.diagnosis.kind, self.diagnosis.message
        if kind in _BOUND:
            return True, message
        if self.cap_reason is Reason.NO_TPOT_SLACK:
            return False, f"tokens leave no time for more sequences: {self.cap_message}"
        if kind is DiagnosisKind.SEQUENCE_CAP:
            ceiling = self.state.ceiling
            remembered = ceiling is not None and self.now < ceiling.until
            if self.cap_reason in _CAP_HELD_BY_CACHE or remembered:
                return True, f"{message}; the cap may not rise: {self.cap_message}"
            return False, f"the KV cache has room, and the cap decides: {message}"
        if self._queued_at_full_cache():
            return True, message
        return False, f"the KV cache does not hold requests back: {message}"

    def _queued_at_full_cache(self) -> bool:
        """Whether requests wait although there is little room, if less than what is called full."""
        most = self.settings.thresholds.cap_free_kv_usage
        return any(
            isinstance(window.kv_usage, GaugeWindow)
            and isinstance(window.waiting, GaugeWindow)
            and window.kv_usage.p95 >= most
            and min(window.waiting.mean, window.waiting.last) > 0
            for window in self.windows
        )

    def _per_rank(self, gauges: Sequence[GaugeWindow | Unknown]) -> float:
        ranks = sum(each.ranks for each in self.engines)
        found = [gauge.mean for gauge in gauges if isinstance(gauge, GaugeWindow)]
        return math.fsum(found) / ranks if ranks else 0.0


@dataclass(frozen=True, slots=True)
class Late:
    """Share of requests beyond a target: at least, at most, and how much is allowed.

    `targeted` tells whether there is a target, `measured` whether anything tells of it.
    """

    targeted: bool
    measured: bool
    least: float
    most: float
    allowed: float

    @property
    def missed(self) -> bool:
        """Whether the target is missed for certain."""
        return self.measured and self.least > self.allowed

    @property
    def kept(self) -> bool:
        """Whether the target is kept for certain; one that is not set is."""
        return not self.targeted or (self.measured and self.most <= self.allowed)


def late(latencies: Sequence[Histogram | Unknown], target_ms: float | None, allowed: float) -> Late:
    """How many requests of all engines miss a target."""
    if target_ms is None:
        return Late(False, False, 0.0, 0.0, allowed)
    count = least = most = 0.0
    for histogram in latencies:
        if isinstance(histogram, Unknown):
            return Late(True, False, 0.0, 1.0, allowed)
        share = histogram.share_above(target_ms / 1000)
        if isinstance(share, Unknown):
            continue
        count += histogram.count
        least += share.lo * histogram.count
        most += share.hi * histogram.count
    if not count:
        return Late(True, False, 0.0, 1.0, allowed)
    return Late(True, True, least / count, most / count, allowed)


def _told(label: str | None) -> object:
    return {"True": True, "False": False}.get(label or "", label)


def _version(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])
