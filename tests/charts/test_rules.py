"""Alerts of the chart by Prometheus' own unit tests: each fires in its case and not without."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from observability.alerts import alerts
from promkit.promtool import check_config, check_rules, run_tests
from promkit.series import constant, histogram, rising, series

pytestmark = pytest.mark.prometheus

MINUTES = 90
SERVING = {"namespace": "team", "name": "chat"}
ENGINE = {"job": "engines", "instance": "10.0.0.1:8000", "pod": "chat-1", **SERVING}
OPERATOR = {"job": "operator", "pod": "operator-1", **SERVING}
TTFT, TPOT = "vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds"
FAST = {"ttft": {0.1: 0.97, 0.5: 1.0}, "tpot": {0.02: 0.97, 0.1: 1.0}}
"""Shares of requests within each edge of a calm service: p95 near 100 and 20 ms."""


def of_engine(metric: str, /, **labels: str) -> str:
    return series(metric, **ENGINE, **labels)


def of_operator(metric: str, /, **labels: str) -> str:
    return series(metric, **OPERATOR, **labels)


def condition(type: str, status: str, reason: str) -> str:
    return of_operator("kvserving_condition", type=type, status=status, reason=reason)


def quality(what: str) -> str:
    return of_operator(f"kvserving_quality_{what}", criterion="WatchedNeedle512", stage="Promoted")


USAGE = of_engine("vllm:kv_cache_usage_perc")
RUNNING = of_engine("vllm:num_requests_running")
WAITING = of_engine("vllm:num_requests_waiting_by_reason", reason="capacity")
PREEMPTIONS = of_engine("vllm:num_preemptions_total")
TOKENS = of_engine("vllm:generation_tokens_total")
READY_ENGINES = of_operator("kvserving_operator_ready_engines")
LAST_TICK = of_operator("kvserving_operator_last_tick_timestamp_seconds")
LEASE = series("kvserving_operator_lease_held", job="operator", pod="operator-1")
ROLLBACKS = of_operator("kvserving_rollbacks_total", stage="Trial")
PERCENTILE = of_operator("kvserving_slo_percentile")
OWN_TTFT, OWN_TPOT = (of_operator(f"kvserving_slo_{what}_seconds") for what in ("ttft", "tpot"))

CALM: Mapping[str, str] = {
    each["series"]: each["values"]
    for each in (
        *constant(
            {
                USAGE: 0.55,
                RUNNING: 8,
                WAITING: 0,
                READY_ENGINES: 1,
                LEASE: 1,
                ROLLBACKS: 0,
                PERCENTILE: 95,
                condition("Ready", "True", "Serving"): 1,
                condition("Degraded", "False", "AsExpected"): 1,
                condition("MetricsAvailable", "True", "MetricsFresh"): 1,
                condition("QualityGate", "True", "Passed"): 1,
                of_operator(
                    "kvserving_decision", action="Hold", reason="Healthy", diagnosis="Healthy"
                ): 1,
                quality("drop_ratio"): 0.015,
                quality("max_drop_ratio"): 0.02,
                quality("samples"): 100,
            },
            MINUTES,
        ),
        *rising(
            {
                # One in an hour and a half is no storm.
                PREEMPTIONS: 0.01,
                TOKENS: 6000,
                LAST_TICK: 60,
                **histogram(TTFT, ENGINE, FAST["ttft"], 60),
                **histogram(TPOT, ENGINE, FAST["tpot"], 60),
            },
            MINUTES,
        ),
    )
}
"""A service under load with nothing wrong, near most thresholds."""


def like_calm(*changes: Mapping[str, str | None]) -> list[dict[str, str]]:
    """Series of the calm service with some others in their place; None takes one away."""
    merged: dict[str, str | None] = dict(CALM)
    for change in changes:
        merged |= change
    return [
        {"series": name, "values": values} for name, values in merged.items() if values is not None
    ]


def for_ever(value: float) -> str:
    return f"{value}x{MINUTES}"


def from_then(before: float, after: float, minute: int) -> str:
    return f"{before}x{minute - 1} {after}x{MINUTES - minute}"


def late(name: str, share_within: Mapping[float, float]) -> dict[str, str]:
    rises = rising(histogram(name, ENGINE, share_within, 60), MINUTES)
    return {each["series"]: each["values"] for each in rises}


def every_ready_engine_gone() -> dict[str, str | None]:
    return {name: None for name in CALM if "vllm:" in name}


@dataclass(frozen=True)
class Case:
    """What makes one alert fire."""

    alert: str
    changes: Mapping[str, str | None]
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=lambda: SERVING)
    at: int = 60
    """Minute at which it fires."""
    silent_at: int | None = None
    """Minute at which it has not fired yet, or no more."""


CASES = (
    Case(
        "KVServingKVCacheFilling",
        {USAGE: from_then(0.55, 0.65, 30)},
        "The KV cache of team/chat is 65% full.",
        "More load, or longer requests, will soon have to wait for room.",
        silent_at=40,
    ),
    Case(
        "KVServingKVCacheFull",
        {USAGE: from_then(0.85, 0.95, 30)},
        "The KV cache of team/chat is 95% full.",
        "Requests wait for room in the cache, or put each other out of it.",
        silent_at=33,
    ),
    Case(
        "KVServingTTFTHigh",
        late(TTFT, {0.1: 0.5, 0.5: 0.95}),
        "The first token of team/chat takes 500ms at the target's percentile.",
        "The target is that of spec.slo, or 200 ms where it names none.",
    ),
    Case(
        "KVServingTPOTHigh",
        late(TPOT, {0.02: 0.5, 0.1: 0.95}),
        "Each further token of team/chat takes 100ms at the target's percentile.",
        "The target is that of spec.slo, or 50 ms where it names none.",
    ),
    Case(
        "KVServingThroughputLow",
        # Falls by half while requests wait.
        {TOKENS: "0+6000x30 180000+3000x60", WAITING: for_ever(3)},
        "Engines of team/chat generate less than they have shown they can.",
        "Requests wait, and yet an engine generates 50 tokens a second, below 80 % of the most in "
        "a day.",
        silent_at=30,
    ),
    Case(
        "KVServingPreemptionStorm",
        {PREEMPTIONS: "0x29 0+30x60", USAGE: for_ever(0.95)},
        "Sequences in chat-1 of team/chat evict each other.",
        "0.06 preemptions a second for each running request: they are computed again and again.",
        {**SERVING, "pod": "chat-1"},
        silent_at=28,
    ),
    Case(
        "KVServingEnginesNotScraped",
        every_ready_engine_gone(),
        "Prometheus has no metrics of the engines of team/chat.",
        "1 engines answer, but alerts about engines cannot fire: is the PodMonitor installed, and "
        "does Prometheus select it?",
        silent_at=5,
    ),
    Case(
        "KVServingUnavailable",
        {
            condition("Ready", "True", "Serving"): None,
            # The reason changes in between: that does not make it wait anew.
            condition("Ready", "False", "Starting"): "1x30",
            condition("Ready", "False", "NoReadyEngine"): "_x30 1x60",
        },
        "No engine of team/chat answers completions.",
        "The condition Ready is False: NoReadyEngine.",
        at=40,
        silent_at=10,
    ),
    Case(
        "KVServingDegraded",
        {
            condition("Degraded", "False", "AsExpected"): None,
            condition("Degraded", "True", "OutOfMemory"): for_ever(1),
        },
        "team/chat needs a person.",
        "Part of the service or of its spec is not in force: OutOfMemory.",
        silent_at=5,
    ),
    Case(
        "KVServingTunerHolds",
        {
            condition("MetricsAvailable", "True", "MetricsFresh"): None,
            condition("MetricsAvailable", "False", "MetricsStale"): for_ever(1),
        },
        "The tuner of team/chat holds, as numbers are missing.",
        "Nothing is promoted or rolled back meanwhile. MetricsAvailable says MetricsStale.",
        silent_at=5,
    ),
    Case(
        "KVServingTunerHolds",
        {
            of_operator(
                "kvserving_decision",
                action="Hold",
                reason="RuntimeUnreadable",
                diagnosis="SequenceCap",
            ): for_ever(1)
        },
        "The tuner of team/chat holds, as numbers are missing.",
        "Nothing is promoted or rolled back meanwhile. MetricsAvailable says MetricsFresh.",
    ),
    Case(
        "KVServingQualityDropped",
        {quality("drop_ratio"): for_ever(0.035)},
        "Probes measure a drop of 3.5% in the output quality of team/chat.",
        "WatchedNeedle512 is beyond what the policy accepts; the judge is not yet certain enough "
        "to roll back.",
        {**SERVING, "criterion": "WatchedNeedle512", "stage": "Promoted"},
        silent_at=3,
    ),
    Case(
        "KVServingRolledBack",
        {ROLLBACKS: from_then(0, 1, 20)},
        "A change of team/chat was rolled back.",
        "It broke a bound of quality or of a guard (Trial); the KVTrial has the numbers.",
        {**SERVING, "stage": "Trial"},
        at=25,
        silent_at=85,
    ),
    Case(
        "KVServingOperatorDeaf",
        {LAST_TICK: "0+60x30 1800x60"},
        "The operator has not looked at team/chat for 30m 0s.",
        "Engines serve on, but nothing is tuned, judged or rolled back, and no edit is carried "
        "out.",
        silent_at=34,
    ),
    Case(
        "KVServingOperatorDown",
        {name: None for name in CALM if "operator-1" in name},
        "No KVServing operator is at work.",
        "Or Prometheus does not scrape it. Engines serve on, but new ones do not turn ready, and "
        "nothing is tuned, judged or rolled back.",
        {},
        silent_at=3,
    ),
    Case(
        "KVServingOperatorDown",
        {LEASE: for_ever(0)},
        "No KVServing operator is at work.",
        "Or Prometheus does not scrape it. Engines serve on, but new ones do not turn ready, and "
        "nothing is tuned, judged or rolled back.",
        {},
    ),
)


@pytest.fixture(scope="module")
def rules(render: Any) -> Any:
    """What the chart's PrometheusRule asks for, by default."""
    return rule_of(render)


def rule_of(render: Any, **values: Any) -> Any:
    manifests = render({"prometheusRule": {"enabled": True, **values}})
    (found,) = [each for each in manifests if each["kind"] == "PrometheusRule"]
    return found["spec"]


def test_promtool_finds_no_fault(rules: Any, tmp_path: Path) -> None:
    said = check_rules(tmp_path, rules)
    assert f"{sum(len(group['rules']) for group in rules['groups'])} rules found" in said


def test_the_configuration_that_the_page_shows_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (config,) = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    # Debian's build knows no Kubernetes; what is relabelled is of the same form for any targets.
    pods = "kubernetes_sd_configs: [{role: pod}]"
    assert pods in config
    check_config(tmp_path, config.replace(pods, "file_sd_configs: [{files: [pods.json]}]"))
    engines, operator = yaml.safe_load(config)["scrape_configs"]
    named = {rule.get("target_label") for rule in engines["relabel_configs"]}
    assert named >= {"namespace", "name", "pod"}
    assert operator["honor_labels"] is True


def test_each_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in alerts()}


def test_each_fires_in_its_case(rules: Any, tmp_path: Path) -> None:
    run_tests(tmp_path, rules, [firing(case) for case in CASES])


def firing(case: Case) -> dict[str, Any]:
    severity = next(alert.severity for alert in alerts() if alert.name == case.alert)
    expected = {
        "exp_labels": {**case.labels, "severity": severity},
        "exp_annotations": {"summary": case.summary, "description": case.description},
    }
    tests = [{"alertname": case.alert, "eval_time": f"{case.at}m", "exp_alerts": [expected]}]
    if case.silent_at is not None:
        tests += silent(case.alert, minutes=(case.silent_at,))
    return given(case.alert, like_calm(case.changes), alerts=tests)


def given(
    name: str,
    input_series: list[dict[str, str]],
    alerts: Sequence[dict[str, Any]] = (),
    expressions: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": input_series,
        "alert_rule_test": list(alerts),
        "promql_expr_test": list(expressions),
    }


def ttft_alerts(fires: bool) -> dict[str, Any]:
    return {
        "expr": 'count(ALERTS{alertname="KVServingTTFTHigh",alertstate="firing"})',
        "eval_time": "60m",
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }


def silent(*names: str, minutes: tuple[int, ...] = (10, 30, 60, 89)) -> list[dict[str, Any]]:
    return [
        {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": []}
        for name in names
        for minute in minutes
    ]


def test_none_fires_on_a_calm_service(rules: Any, tmp_path: Path) -> None:
    tests = silent(*(alert.name for alert in alerts()))
    # A new operator's pod has series of its own; for minutes both are there.
    second = {
        name.replace("operator-1", "operator-2"): values
        for name, values in CALM.items()
        if "operator-1" in name
    }
    calm = given("calm", like_calm(), alerts=tests)
    two_operators = given("two operators", like_calm(second), alerts=tests)
    run_tests(tmp_path, rules, [calm, two_operators])


NEARLY: Mapping[str, tuple[str, Mapping[str, str | None]]] = {
    "requests wait, and engines do what they can": (
        "KVServingThroughputLow",
        {WAITING: for_ever(3)},
    ),
    "fewer tokens as fewer are asked for": (
        "KVServingThroughputLow",
        {TOKENS: "0+6000x30 180000+3000x60"},
    ),
    "preemptions without a full cache": ("KVServingPreemptionStorm", {PREEMPTIONS: "0+30x90"}),
    "few preemptions in a full cache": (
        "KVServingPreemptionStorm",
        {PREEMPTIONS: "0+2x90", USAGE: for_ever(0.95)},
    ),
    "no replicas are wanted": (
        "KVServingUnavailable",
        {
            condition("Ready", "True", "Serving"): None,
            condition("Ready", "False", "ScaledToZero"): for_ever(1),
        },
    ),
    "a drop seen in a few samples": (
        "KVServingQualityDropped",
        {quality("drop_ratio"): for_ever(0.5), quality("samples"): for_ever(5)},
    ),
    "an operator that begins anew": ("KVServingRolledBack", {ROLLBACKS: "3x30 0x60"}),
    "no engine is ready, and none is scraped": (
        "KVServingEnginesNotScraped",
        {**every_ready_engine_gone(), READY_ENGINES: for_ever(0)},
    ),
    "a tuner that holds as all is well": (
        "KVServingTunerHolds",
        {
            condition("MetricsAvailable", "True", "MetricsFresh"): None,
            condition("MetricsAvailable", "True", "NoTraffic"): for_ever(1),
        },
    ),
    "other engines than ours": (
        "KVServingKVCacheFull",
        {
            series(
                "vllm:kv_cache_usage_perc", job="others", instance="b", namespace="team", pod="b"
            ): for_ever(1)
        },
    ),
}


def test_alerts_stay_silent_without_cause(rules: Any, tmp_path: Path) -> None:
    tests = [
        given(what, like_calm(changes), alerts=silent(alert))
        for what, (alert, changes) in NEARLY.items()
    ]
    run_tests(tmp_path, rules, tests)


SLOW = late(TTFT, {0.1: 0.5, 0.5: 0.95})
"""Half of the requests within 100 ms, 95 % within 500."""
TARGETS: tuple[tuple[dict[str, str], bool], ...] = (
    ({}, True),
    ({OWN_TTFT: for_ever(0.6)}, False),
    ({OWN_TTFT: for_ever(0.4)}, True),
    ({OWN_TTFT: for_ever(0.15), PERCENTILE: for_ever(50)}, False),
    ({OWN_TTFT: for_ever(0.05), PERCENTILE: for_ever(50)}, True),
    # Between two recorded ones the lower counts: p90 is 456 ms.
    ({OWN_TTFT: for_ever(0.47), PERCENTILE: for_ever(94)}, False),
    ({OWN_TTFT: for_ever(0.44), PERCENTILE: for_ever(94)}, True),
    ({OWN_TTFT: for_ever(0.47), PERCENTILE: for_ever(95)}, True),
)


def test_targets_are_those_of_the_spec(rules: Any, tmp_path: Path) -> None:
    tests = [
        given(str(slo), like_calm(SLOW, slo), expressions=[ttft_alerts(fires)])
        for slo, fires in TARGETS
    ]
    run_tests(tmp_path, rules, tests)


def test_targets_outlive_the_operator_for_an_hour(rules: Any, tmp_path: Path) -> None:
    gone = {
        name: f"{values.split('x')[0]}x30"
        for name, values in CALM.items()
        if "operator-1" in name and name != LEASE
    }
    tests = [
        given(target, like_calm(SLOW, gone, {target: "0.6x30"}), expressions=[ttft_alerts(fires)])
        for target, fires in ((OWN_TTFT, False), (of_operator("another"), True))
    ]
    run_tests(tmp_path, rules, tests)


def test_thresholds_are_those_of_the_values(render: Any, tmp_path: Path) -> None:
    thresholds = {"kvUsageWarningPercent": 50, "ttftMilliseconds": 20}
    rules = rule_of(render, thresholds=thresholds, alertLabels={"team": "serving"})
    expected = {
        "exp_labels": {**SERVING, "severity": "warning", "team": "serving"},
        "exp_annotations": {
            "summary": "The KV cache of team/chat is 55% full.",
            "description": "Requests wait for room in the cache, or put each other out of it.",
        },
    }
    full = {"alertname": "KVServingKVCacheFull", "eval_time": "60m", "exp_alerts": [expected]}
    test = given("values", like_calm(), alerts=[full], expressions=[ttft_alerts(True)])
    run_tests(tmp_path, rules, [test])
