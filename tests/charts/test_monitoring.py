"""Monitors, rules and dashboards of the chart: when they are there, and what they ask for."""

import json
import re
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from kvserving_operator.metrics import OperatorMetrics
from kvserving_operator.render.names import SERVING_LABEL
from observability import rules
from observability.alerts import alerts
from observability.dashboards import dashboard_files, panels
from observability.recordings import recordings
from operatorkit.specs import REF

ALL = {kind: {"enabled": True} for kind in ("serviceMonitor", "podMonitor", "prometheusRule")}
PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def only(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def boards(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for m in manifests if m["kind"] == "ConfigMap" and "dashboard" in str(m["metadata"])]


def test_nothing_needs_the_crds_of_others_by_default(render: Any) -> None:
    assert not KINDS & {manifest["kind"] for manifest in render()}
    assert {manifest["kind"] for manifest in render(ALL)} >= KINDS


def test_monitors_carry_the_labels_that_a_prometheus_selects_by(render: Any) -> None:
    labels = {"release": "kube-prometheus-stack"}
    manifests = render({kind: {"enabled": True, "labels": labels} for kind in ALL})
    for kind in KINDS:
        assert labels.items() <= only(manifests, kind)["metadata"]["labels"].items()


def test_the_service_monitor_finds_the_operators_metrics(render: Any) -> None:
    manifests = render(ALL)
    monitor, service = only(manifests, "ServiceMonitor")["spec"], only(manifests, "Service")
    wanted = monitor["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    # Else the KVServing's namespace would be found under `exported_namespace` alone.
    assert endpoint["honorLabels"] is True
    assert monitor["namespaceSelector"] == {"matchNames": ["kvserving-system"]}


def test_a_monitor_of_metrics_that_are_off_is_refused(chart: helm.Chart) -> None:
    values = {**ALL, "metrics": {"enabled": False}}
    with pytest.raises(helm.HelmError, match=r"serviceMonitor\.enabled: needs metrics\.enabled"):
        chart.render(values, name="kvserving", namespace="kvserving-system")


def test_the_pod_monitor_finds_every_engine_and_names_its_serving(render: Any) -> None:
    monitor = only(render(ALL), "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= REF.labels.items()
    assert not monitor["selector"]["matchLabels"].items() <= REF.preflight_labels.items()
    assert monitor["namespaceSelector"] == {"any": True}
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    label = re.sub(r"[^a-z]", "_", SERVING_LABEL)
    (named,) = endpoint["relabelings"]
    assert named["sourceLabels"] == [f"__meta_kubernetes_pod_label_{label}"]
    assert named["targetLabel"] == "name"


def test_the_pod_monitor_looks_where_the_operator_does(render: Any) -> None:
    monitor = only(render({**ALL, "watchNamespaces": ["blue", "green"]}), "PodMonitor")["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": ["blue", "green"]}


def test_no_threshold_is_left_open(render: Any) -> None:
    text = json.dumps(only(render(ALL), "PrometheusRule"))
    assert "<<" not in text
    assert ">>" not in text


def test_every_threshold_has_an_effect(render: Any, chart: helm.Chart) -> None:
    default = only(render(ALL), "PrometheusRule")["spec"]
    for name, value in chart.values["prometheusRule"]["thresholds"].items():
        changed = {"prometheusRule": {"enabled": True, "thresholds": {name: int(value) + 1}}}
        assert only(render(changed), "PrometheusRule")["spec"] != default, name


def test_rules_are_those_of_the_code(render: Any) -> None:
    groups = only(render(ALL), "PrometheusRule")["spec"]["groups"]
    rendered = [rule for group in groups for rule in group["rules"]]
    assert [r["record"] for r in rendered if "record" in r] == [r.record for r in recordings()]
    assert [r["alert"] for r in rendered if "alert" in r] == [a.name for a in alerts()]
    assert all(r["labels"]["severity"] in ("info", "warning", "critical") for r in rendered
               if "alert" in r)  # fmt: skip


def test_alerts_can_be_left_out_and_linked(render: Any) -> None:
    given = {
        "enabled": True,
        "disabled": ["KVServingTTFTHigh", "KVServingOperatorDown"],
        "runbookUrl": "https://example.com/alerts.html",
        "alertLabels": {"team": "serving"},
    }
    groups = only(render({"prometheusRule": given}), "PrometheusRule")["spec"]["groups"]
    rendered = {r["alert"]: r for group in groups for r in group["rules"] if "alert" in r}
    assert set(rendered) == {a.name for a in alerts()} - set(given["disabled"])  # type: ignore[call-overload]
    for name, alert in rendered.items():
        link = f"https://example.com/alerts.html#{name.lower()}"
        assert alert["annotations"]["runbook_url"] == link
        assert alert["labels"]["team"] == "serving"


@pytest.mark.parametrize(
    "wrong",
    [
        {"prometheusRule": {"thresholds": {"ttft": 5}}},
        {"prometheusRule": {"thresholds": {"kvUsageInfoPercent": 101}}},
        {"prometheusRule": {"disabled": ["TTFT"]}},
        {"podMonitor": {"interval": "soon"}},
        {"dashboards": {"labels": {"grafana_dashboard": 1}}},
    ],
)
def test_a_wrong_value_is_refused(chart: helm.Chart, wrong: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        chart.validate_schema(chart.merge_values(wrong))


def test_dashboards_are_found_by_grafanas_sidecar(render: Any) -> None:
    manifests = boards(render({"dashboards": {"annotations": {"grafana_folder": "LLM"}}}))
    assert len(manifests) == 3
    for manifest in manifests:
        assert manifest["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert manifest["metadata"]["annotations"] == {"grafana_folder": "LLM"}
        ((name, text),) = manifest["data"].items()
        assert name.endswith(".json")
        assert json.loads(text)["title"].startswith("KVServing / ")
    assert not boards(render({"dashboards": {"enabled": False}}))


def test_generated_files_are_those_of_the_code() -> None:
    files = {rules.PATH: rules.rule_file(), **dashboard_files()}
    root = Path(__file__).parents[2]
    assert {path: (root / path).read_text() for path in files} == files


def test_panels_stand_beside_each_other() -> None:
    for text in dashboard_files().values():
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(text)["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at.get("x", 0), at.get("x", 0) + at["w"])
                for y in range(at.get("y", 0), at.get("y", 0) + at["h"])
            }
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24
            taken |= cells


def test_every_metric_of_ours_that_is_asked_for_exists() -> None:
    families = list(OperatorMetrics().registry.collect())
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    known |= {f"{f.name}_bucket" for f in families if f.type == "histogram"}
    expressions = [r.expr for r in recordings()] + [a.expr for a in alerts()]
    expressions += [query.expr for _, panel in panels() for query in panel.queries]
    asked = {name for text in expressions for name in re.findall(r"\bkvserving_\w+", text)}
    assert len(asked) > 10
    assert asked <= known
    recorded = {r.record for r in recordings()}
    assert {name for text in expressions for name in re.findall(r"\bkvs:\w+:\w+", text)} == recorded


def test_the_page_explains_every_alert() -> None:
    rows = {
        match["name"]: (match["anchor"], match["severity"], match["lasts"])
        for match in re.finditer(
            r"^\| \[`(?P<name>\w+)`\]\(#(?P<anchor>\w+)\) \| (?P<severity>\w+) \| [^|]+"
            r" \| (?P<lasts>\w+) \|",
            PAGE,
            re.MULTILINE,
        )
    }
    assert rows == {each.name: (each.name.lower(), each.severity, each.lasts) for each in alerts()}
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == [each.name for each in alerts()]


def test_the_values_that_the_page_shows_are_taken(render: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    texts = re.findall(
        r"^```yaml\n(# values of the chart\n.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    kinds = [{manifest["kind"] for manifest in render(yaml.safe_load(text))} for text in texts]
    assert any(found >= KINDS for found in kinds)


def test_the_page_names_every_threshold(chart: helm.Chart) -> None:
    for name in chart.values["prometheusRule"]["thresholds"]:
        assert f"`{name}`" in PAGE
