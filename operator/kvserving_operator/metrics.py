"""The operator's own Prometheus metrics: names, labels, units."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SERVING = ("namespace", "name")


class OperatorMetrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ticks = Counter(
            "kvserving_operator_ticks",
            "Looks at a KVServing, by result: ok, unavailable (the API did not answer), failed.",
            ("result",),
            registry=self.registry,
        )
        self.tick_seconds = Histogram(
            "kvserving_operator_tick_seconds",
            "Duration of one look at a KVServing.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.last_tick = Gauge(
            "kvserving_operator_last_tick_timestamp_seconds",
            "When a KVServing was last looked at with success, in seconds since the epoch.",
            _SERVING,
            registry=self.registry,
        )
        self.servings = Gauge(
            "kvserving_operator_servings",
            "KVServings that are looked after.",
            registry=self.registry,
        )
        self.lease_held = Gauge(
            "kvserving_operator_lease_held",
            "1 while this process may act, else 0.",
            registry=self.registry,
        )
        self.decisions = Counter(
            "kvserving_operator_decisions",
            "Decisions of the tuner that said something new.",
            (*_SERVING, "action", "reason"),
            registry=self.registry,
        )
        self.status_writes = Counter(
            "kvserving_operator_status_writes",
            "Writes of a KVServing's status.",
            _SERVING,
            registry=self.registry,
        )
        self.ready_engines = Gauge(
            "kvserving_operator_ready_engines",
            "Engines that answer completions.",
            _SERVING,
            registry=self.registry,
        )
        self.degraded = Gauge(
            "kvserving_operator_degraded",
            "1 while the condition Degraded is true, else 0.",
            _SERVING,
            registry=self.registry,
        )

    def forget(self, namespace: str, name: str) -> None:
        """Drop the series of a KVServing that is gone."""
        for metric in (self.last_tick, self.ready_engines, self.degraded, self.status_writes):
            metric.remove_by_labels({"namespace": namespace, "name": name})
        self.decisions.remove_by_labels({"namespace": namespace, "name": name})
