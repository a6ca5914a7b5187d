"""The operator's own Prometheus metrics: names, labels, units.

`kvserving_operator_*` is about the operator at work; `kvserving_*` is about one KVServing, what its
spec asks for and how it stands, for alerts and dashboards to hold the engines' own metrics against.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SERVING = ("namespace", "name")

Labels = tuple[str, ...]
"""Values of a metric's labels beside namespace and name, in their order."""


class Present:
    """A gauge with the series of a KVServing's present state, and none of a former one.

    What stays is never taken away in between: a scrape that misses a series ends it, and alerts
    that wait for it begin anew.
    """

    def __init__(
        self, name: str, meaning: str, labels: Labels, registry: CollectorRegistry
    ) -> None:
        self._gauge = Gauge(name, meaning, (*_SERVING, *labels), registry=registry)
        self._shown: dict[tuple[str, str], frozenset[Labels]] = {}

    def show(self, namespace: str, name: str, series: Mapping[Labels, float]) -> None:
        """Have exactly these series of a KVServing, by the values of their further labels."""
        for labels, value in series.items():
            self._gauge.labels(namespace, name, *labels).set(value)
        for labels in self._shown.pop((namespace, name), frozenset()) - series.keys():
            self._gauge.remove(namespace, name, *labels)
        if series:
            self._shown[(namespace, name)] = frozenset(series)


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
        self.last_tick = self._gauge(
            "kvserving_operator_last_tick_timestamp_seconds",
            "When a KVServing was last looked at with success, in seconds since the epoch.",
        )
        self.last_observation = self._gauge(
            "kvserving_operator_last_observation_timestamp_seconds",
            "When all numbers that decisions need were last there, in seconds since the epoch.",
        )
        self.decisions = self._counter(
            "kvserving_operator_decisions",
            "Decisions of the tuner that said something new.",
            ("action", "reason"),
        )
        self.status_writes = self._counter(
            "kvserving_operator_status_writes", "Writes of a KVServing's status."
        )
        self.wanted_engines = self._gauge(
            "kvserving_operator_wanted_engines", "Engines that the spec asks for."
        )
        self.ready_engines = self._gauge(
            "kvserving_operator_ready_engines", "Engines that answer completions."
        )
        self.degraded = self._gauge(
            "kvserving_operator_degraded", "1 while the condition Degraded is true, else 0."
        )
        self.info = self._present(
            "kvserving_info",
            "What a KVServing is (constant 1).",
            ("model", "mode", "kv_cache_dtype", "eviction"),
        )
        self.condition = self._present(
            "kvserving_condition",
            "Conditions as they stand (constant 1).",
            ("type", "status", "reason"),
        )
        self.decision = self._present(
            "kvserving_decision",
            "What the tuner last decided (constant 1); nothing while it cannot decide.",
            ("action", "reason", "diagnosis"),
        )
        self.slo_ttft = self._present(
            "kvserving_slo_ttft_seconds", "Target for the time to first token, where there is one."
        )
        self.slo_tpot = self._present(
            "kvserving_slo_tpot_seconds",
            "Target for the time per output token, where there is one.",
        )
        self.slo_percentile = self._gauge(
            "kvserving_slo_percentile", "Share of requests that must meet the targets, in percent."
        )
        self.trial = self._present(
            "kvserving_trial", "The trial under way (constant 1).", ("trial", "state", "step")
        )
        self.trials = self._counter(
            "kvserving_trials", "Trials that have ended, by verdict.", ("verdict",)
        )
        self.rollbacks = self._counter(
            "kvserving_rollbacks",
            "Changes that were judged and taken back: in a trial, or after they were promoted.",
            ("stage",),
        )
        self.quality_drop = self._present(
            "kvserving_quality_drop_ratio",
            "Drop of output quality that probes measured, by criterion.",
            ("criterion", "stage"),
        )
        self.quality_bound = self._present(
            "kvserving_quality_max_drop_ratio",
            "Largest drop that is accepted of a criterion.",
            ("criterion", "stage"),
        )
        self.quality_samples = self._present(
            "kvserving_quality_samples",
            "Pairs behind the drop of a criterion.",
            ("criterion", "stage"),
        )
        self.guard_rise = self._present(
            "kvserving_guard_rise_ratio",
            "What the change under trial costs in service, by guard.",
            ("guard",),
        )
        self.guard_bound = self._present(
            "kvserving_guard_max_rise_ratio", "Largest cost that a guard accepts.", ("guard",)
        )

    def forget(self, namespace: str, name: str) -> None:
        """Drop the series of a KVServing that is gone."""
        for member in vars(self).values():
            if isinstance(member, Present):
                member.show(namespace, name, {})
        for metric in (
            self.last_tick,
            self.last_observation,
            self.decisions,
            self.status_writes,
            self.wanted_engines,
            self.ready_engines,
            self.degraded,
            self.slo_percentile,
            self.trials,
            self.rollbacks,
        ):
            metric.remove_by_labels({"namespace": namespace, "name": name})

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, _SERVING, registry=self.registry)

    def _counter(self, name: str, meaning: str, labels: Labels = ()) -> Counter:
        return Counter(name, meaning, (*_SERVING, *labels), registry=self.registry)

    def _present(self, name: str, meaning: str, labels: Labels = ()) -> Present:
        return Present(name, meaning, labels, self.registry)
