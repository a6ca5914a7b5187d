"""The plugin's own metrics, on the registry that the engine's /metrics shows.

`vllm:cache_config_info` does not serve: its dtype label is the flag (`auto`), set once at start.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

# With several API servers, the one that saw the newest change knows best.
_MODE: Final[Literal["mostrecent"]] = "mostrecent"

SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that vLLM sets where several API servers share their metrics as files."""

COUNTED: Final = {
    "evicted_blocks": "Blocks of the KV cache freed while their requests went on.",
    "nonfinite_values": "Keys and values that were NaN or infinite when they were stored.",
    "saturated_values": "Keys and values too large for a format, stored as the largest it has.",
    "switches": "Live changes of the KV cache's format or eviction that were carried out.",
    "jit_compiles": "Kernels that were compiled since the engine could be asked.",
    "switch_seconds": "Time that these took, in seconds, during which no token was computed.",
}
"""Counters of the runtime document, and what they mean."""


class RuntimeMetrics:
    """Gauges follow the runtime document; counters count changes and readiness completions."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._info = Gauge(
            "kvserving:kv_cache_info",
            "KV cache in effect (constant 1).",
            ("dtype", "eviction", "block_size"),
            registry=registry,
            multiprocess_mode=_MODE,
        )
        self._max_active_seqs = Gauge(
            "kvserving:max_active_seqs",
            "Most sequences that run at once, in effect.",
            registry=registry,
            multiprocess_mode=_MODE,
        )
        self._changes = Counter(
            "kvserving:changes",
            "Requests to change a setting live.",
            ("knob", "result"),
            registry=registry,
        )
        self._counted = {
            name: _counter(name, meaning, registry) for name, meaning in COUNTED.items()
        }
        self._before = dict.fromkeys(self._counted, 0.0)
        self._completions = Counter(
            "kvserving:ready_completions",
            "One-token completions made to prove readiness; not in the engine's own statistics.",
            ("result",),
            registry=registry,
        )
        self._probe_tokens = Counter(
            "kvserving:probe_tokens",
            "Tokens computed for probes, which are not in the engine's own statistics.",
            ("form", "dtype"),
            registry=registry,
        )
        self._info_labels: tuple[str, str, str] | None = None

    def show(self, document: Mapping[str, Any]) -> None:
        """Follow a runtime document."""
        effective, capacity = document["effective"], document["capacity"]
        labels = (
            str(effective["kv_cache_dtype"]),
            str(effective["eviction"]["policy"]),
            str(capacity["block_size"]),
        )
        if self._info_labels is not None and self._info_labels != labels:
            self._retire(*self._info_labels)
        self._info_labels = labels
        self._info.labels(*labels).set(1)
        self._max_active_seqs.set(effective["max_active_seqs"])
        for name, counter in self._counted.items():
            count = float(document.get("counters", {}).get(name, 0))
            # Answers may overtake each other; a counter never goes back.
            counter.inc(max(0, count - self._before[name]))
            self._before[name] = max(self._before[name], count)

    def count_change(self, knob: str, result: str) -> None:
        """Count a request to change `knob`."""
        self._changes.labels(knob, result).inc()

    def count_completion(self, succeeded: bool) -> None:
        """Count a completion made to prove readiness."""
        self._completions.labels("Succeeded" if succeeded else "Failed").inc()

    def count_probe_tokens(self, form: str, dtype: str, tokens: int) -> None:
        """Count tokens that were computed for a probe."""
        self._probe_tokens.labels(form, dtype).inc(tokens)

    def _retire(self, *labels: str) -> None:
        # Files shared between processes cannot drop a series, only zero it.
        if SHARED in os.environ:
            self._info.labels(*labels).set(0)
        else:
            self._info.remove(*labels)


def _counter(name: str, meaning: str, registry: CollectorRegistry) -> Counter | Gauge:
    """What shows a count of the engine core's."""
    if SHARED not in os.environ:
        return Counter(f"kvserving:{name}", meaning, registry=registry)
    # Counters of several servers are added up, but each server shows the core's whole count.
    return Gauge(f"kvserving:{name}_total", meaning, registry=registry, multiprocess_mode="max")
