"""Engines' own metrics, read through the API server's proxy, as the tuner reads them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kvserving_kubectl.api import Api, Object
from kvserving_kubectl.errors import Forbidden, PluginError
from kvserving_kubectl.resources import PODS
from kvserving_operator.render.names import ENGINE_PORT, SERVING_LABEL, TRACK_LABEL
from kvserving_tuner.histograms import Histogram
from kvserving_tuner.observation import EngineObservation, Observation, Window
from kvserving_tuner.readings import Known, Reading, Stale
from kvserving_tuner.scrape import Scrape, Unreadable, parse
from kvserving_tuner.settings import Slo, Windows
from kvserving_tuner.sources.base import Attempt, EngineTarget, Histories

CONCURRENCY = 8
WINDOWED = (
    "tokensPerSecond", "requestsPerSecond", "preemptionsPerSecond", "ttftSeconds", "tpotSeconds",
)  # fmt: skip
"""Numbers that take two looks."""


def engine_pods(api: Api, namespace: str, name: str) -> list[Object]:
    """Engine pods of a KVServing that are not on their way out, by name."""
    query = {"labelSelector": f"{SERVING_LABEL}={name},{TRACK_LABEL}"}
    pods = [
        pod
        for pod in api.list(PODS, namespace, query)
        if "deletionTimestamp" not in pod["metadata"]
    ]
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def metrics_text(api: Api, namespace: str, pod: str) -> str:
    """What an engine's /metrics answers."""
    return api.text(PODS, namespace, f"{pod}:{ENGINE_PORT}", "proxy/metrics")


@dataclass
class Engines:
    """The engines of one KVServing, observed again and again."""

    api: Api
    namespace: str
    interval_seconds: float

    def __post_init__(self) -> None:
        # Two looks make a rate; who watches gets a window of a minute.
        full = max(self.interval_seconds * 1.5, 1.0)
        windows = Windows(
            storm_seconds=full, full_seconds=full, minimum_scrapes=2, minimum_coverage=0.5,
            stale_seconds=max(30.0, full),
        )  # fmt: skip
        self._histories = Histories(windows)

    def look(self, pods: Sequence[str], now: float) -> Observation:
        """Read all of them; Forbidden where none may be read."""
        with ThreadPoolExecutor(CONCURRENCY) as workers:
            read = dict(zip(pods, workers.map(lambda pod: self._read(pod, now), pods), strict=True))
        refused = [each for each in read.values() if isinstance(each, Forbidden)]
        if refused and len(refused) == len(read):
            raise refused[0]
        attempts = {
            pod: each if isinstance(each, Attempt) else Attempt(failure=str(each))
            for pod, each in read.items()
        }
        targets = [EngineTarget(pod, "") for pod in pods]
        return self._histories.update(targets, attempts, now)

    def _read(self, pod: str, now: float) -> Attempt | Forbidden:
        try:
            found = parse(metrics_text(self.api, self.namespace, pod), now)
        except Forbidden as error:
            return error
        except PluginError as error:
            return Attempt(failure=str(error))
        if isinstance(found, Unreadable):
            return Attempt(failure=f"/metrics is {found.reason}")
        scrape: Scrape = found
        return Attempt((scrape,))


def slo_of(spec: Mapping[str, Any]) -> Slo:
    """Targets of a KVServing's spec."""
    slo = spec.get("slo") or {}
    return Slo(
        ttft_ms=slo.get("ttftMilliseconds"),
        tpot_ms=slo.get("tpotMilliseconds"),
        percentile=slo.get("percentile", 95),
    )


def numbers(engine: EngineObservation, percentile: float) -> dict[str, Any]:
    """One engine's numbers for programs; None where a number is not known."""
    found: dict[str, Any] = {
        "pod": engine.target,
        "kvUsage": _plain(engine.kv_usage_max),
        "running": _plain(engine.running),
        "waiting": _plain(engine.waiting),
        "maxActiveSeqs": _plain(engine.max_active_seqs),
    }
    full = engine.full
    if not isinstance(full, Window):
        return found | dict.fromkeys(WINDOWED)
    return found | {
        "tokensPerSecond": _plain(full.per_second(full.generation_tokens)),
        "requestsPerSecond": _plain(full.per_second(full.finished)),
        "preemptionsPerSecond": _plain(full.per_second(full.preemptions)),
        "ttftSeconds": _interval(full.ttft, percentile),
        "tpotSeconds": _interval(full.tpot, percentile),
    }


def _plain(reading: Reading) -> float | None:
    return reading.value if isinstance(reading, Known | Stale) else None


def _interval(histogram: object, percentile: float) -> list[float | None] | None:
    """A percentile's interval; an upper end of None is unbounded."""
    if not isinstance(histogram, Histogram):
        return None
    found = histogram.quantile(percentile / 100)
    lo, hi = getattr(found, "lo", None), getattr(found, "hi", None)
    if lo is None or hi is None:
        return None
    return [lo, None if hi == float("inf") else hi]
