"""Recommend changes nothing; where data is missing nothing changes either, and status says why."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import chart
from harness.kube import KVSERVING, Kube, condition, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_condition, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NAME = "advised"
PROMETHEUS = (Path(__file__).parent / "prometheus.yaml").read_text()
NAN_PROXY = (Path(__file__).parent / "nan-proxy.yaml").read_text()
RENAME = """metric_relabel_configs:
          - source_labels: [__name__]
            regex: "vllm:kv_cache_usage_perc"
            replacement: "vllm:kv_usage_renamed"
            target_label: __name__"""
SPOIL = """relabel_configs:
          - {source_labels: [__address__], target_label: instance}
          - {target_label: __address__, replacement: "nan-proxy:9000"}"""


@pytest.fixture(scope="module")
def serving(kube: Kube, namespace: str) -> str:
    kube.apply(PROMETHEUS, namespace)
    spec = tiny_serving(
        NAME,
        # 16 conversations of some hundred tokens do not fit into what 4 MiB hold.
        engine=tiny_engine(kvCacheMemory="4Mi"),
        tuning={"mode": "Recommend"},
        monitoring={
            "source": "Prometheus",
            "prometheus": {"url": f"http://prometheus.{namespace}:9090"},
        },
    )
    kube.apply(spec, namespace)
    kube.run("rollout", "status", "deployment/prometheus", "-n", namespace)
    wait_ready(kube, NAME, namespace)
    return namespace


@pytest.fixture
def storm(kube: Kube, serving: str) -> Iterator[ChatLoad]:
    load = ChatLoad(kube.service_url(NAME, serving), "tiny", clients=16, max_tokens=256)
    with in_background(load, 300, join_seconds=300):
        yield load
    assert [] == load.failures


def state(kube: Kube, namespace: str) -> dict[str, Any]:
    serving = kube.get(KVSERVING, NAME, namespace)
    assert serving is not None
    return serving


def untouched(kube: Kube, namespace: str) -> tuple[Any, ...]:
    """What a tuner could have changed: spec, effective settings, promoted values, pods."""
    serving = state(kube, namespace)
    pods = [pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, namespace)]
    promoted = serving["status"].get("promoted", [])
    return serving["metadata"]["generation"], serving["status"]["effective"], promoted, pods


def restart_prometheus(kube: Kube, namespace: str, manifest: str) -> None:
    kube.apply(manifest, namespace)
    kube.run("rollout", "restart", "deployment/prometheus", "-n", namespace)
    kube.run("rollout", "status", "deployment/prometheus", "-n", namespace)


def test_without_traffic_nothing_is_decided(kube: Kube, serving: str) -> None:
    before = untouched(kube, serving)
    wait_condition(kube, NAME, serving, "MetricsAvailable", "True", "NoTraffic")
    decision = wait_for(
        lambda: state(kube, serving)["status"].get("lastDecision"), "a first decision", 90
    )
    assert "Hold" == decision["action"]
    assert before == untouched(kube, serving)


def test_a_storm_becomes_a_recommendation_and_changes_nothing(
    kube: Kube, serving: str, storm: ChatLoad
) -> None:
    before = untouched(kube, serving)
    advice = wait_for(
        lambda: state(kube, serving)["status"].get("recommendation"), "a recommendation", 120
    )
    assert "PreemptionStorm" in str(advice)
    time.sleep(15)
    assert before == untouched(kube, serving)


def test_a_renamed_metric_holds_and_is_named(kube: Kube, serving: str, storm: ChatLoad) -> None:
    before = untouched(kube, serving)
    restart_prometheus(kube, serving, PROMETHEUS.replace("# RENAME", RENAME))
    found = wait_condition(
        kube, NAME, serving, "MetricsAvailable", "False", "MetricNameUnknown", timeout_seconds=180
    )
    assert "kv_cache_usage" in found["message"]
    assert "Hold" == state(kube, serving)["status"]["lastDecision"]["action"]
    assert before == untouched(kube, serving)


def test_not_a_number_holds_and_is_said(kube: Kube, serving: str, storm: ChatLoad) -> None:
    before = untouched(kube, serving)
    image = kube.run(
        "get", "deployment/kvserving-operator", "-n", chart.NAMESPACE,
        "-o", "jsonpath={.spec.template.spec.containers[0].image}",
    )  # fmt: skip
    kube.apply(NAN_PROXY.replace("OPERATOR_IMAGE", image), serving)
    kube.run("rollout", "status", "deployment/nan-proxy", "-n", serving)
    restart_prometheus(kube, serving, PROMETHEUS.replace("# RELABEL", SPOIL))
    # A Prometheus that has just started has no metrics at all for a while.
    wait_for(
        lambda: "not a number" in condition(state(kube, serving), "MetricsAvailable")["message"],
        "status says which number is none",
        180,
    )
    found = condition(state(kube, serving), "MetricsAvailable")
    assert ("False", "MetricsMissing") == (found["status"], found["reason"])
    assert "kv_cache_usage" in found["message"]
    assert "Hold" == state(kube, serving)["status"]["lastDecision"]["action"]
    assert before == untouched(kube, serving)


def test_a_stopped_prometheus_holds_and_is_said(kube: Kube, serving: str) -> None:
    before = untouched(kube, serving)
    kube.run("scale", "deployment/prometheus", "--replicas=0", "-n", serving)
    wait_condition(kube, NAME, serving, "MetricsAvailable", "False", "PrometheusError")
    time.sleep(15)
    assert before == untouched(kube, serving)
    assert "True" == condition(state(kube, serving), "Ready")["status"]

    restart_prometheus(kube, serving, PROMETHEUS)
    kube.run("scale", "deployment/prometheus", "--replicas=1", "-n", serving)
    wait_condition(kube, NAME, serving, "MetricsAvailable", "True", timeout_seconds=120)
