"""Values of the chart: each is documented, and none of them can write other manifests."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import helm_python as helm
import pytest

from chartkit import FREE, README, page, rows
from kvserving_operator.settings import Settings

# Definitions and dashboards take a second to read.
LIGHT: dict[str, Any] = {"crds": {"install": False}, "dashboards": {"enabled": False}}
EVERYTHING: dict[str, Any] = {
    "gateway": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"a": "b"}},
    "podMonitor": {"enabled": True, "labels": {"a": "b"}},
    "prometheusRule": {"enabled": True, "labels": {"a": "b"}, "alertLabels": {"a": "b"}},
    "metrics": {"tokenSecret": {"name": "scrape"}},
    "engineImages": {"cpu": "registry.example/cpu:1", "nvidia": "registry.example/cuda:1"},
    "serviceAccount": {"name": "tuner"},
    "priorityClassName": "high",
}
HOSTILE = {
    "document": "a\n---\nkind: ClusterRoleBinding\n",
    "quotes": "a\"b'c",
    "flow": "a}, {kind: Secret",
    "comment": "a: b # c",
    "tag": "!!binary a",
    "template": "{{ .Release.Name }}",
    "true": "yes",
    "number": "0123",
}


def schema_of(chart: helm.Chart) -> dict[str, Any]:
    found: dict[str, Any] = (
        chart.schema if isinstance(chart.schema, dict) else json.loads(chart.schema)
    )
    return found


def test_the_readme_has_every_value_with_its_default(chart: helm.Chart) -> None:
    assert README.read_text() == page(), "run `make generate`"
    table = list(rows(schema_of(chart)["properties"], chart.values))
    assert len(table) > 50
    for name, _, meaning in table:
        assert meaning.endswith("."), name


def test_settings_say_the_operators_own_defaults(chart: helm.Chart) -> None:
    for name, setting in schema_of(chart)["properties"]["settings"]["properties"].items():
        field = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
        default = Settings.model_fields[field].default
        assert setting["description"].endswith(f" Default: {default}."), name


def texts(properties: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all values that may be any text, or a list or mapping of texts."""
    for name, child in properties.items():
        if "properties" in child and name not in FREE:
            yield from texts(child["properties"], (*path, name))
        elif child.get("type") == "string":
            yield (*path, name)
        elif child.get("additionalProperties", {}) == {"type": "string"}:
            yield (*path, name, "{}")
        elif child.get("items", {}).get("type") == "string":
            yield (*path, name, "[]")


def values_with(path: tuple[str, ...], text: str) -> dict[str, Any]:
    values = copy.deepcopy(EVERYTHING)
    values |= LIGHT
    if path[0] == "dashboards":
        values["dashboards"] = {}
    inner: Any = values
    container: Any = text
    if path[-1] == "{}":
        path, container = path[:-1], {"key": text}
    elif path[-1] == "[]":
        path, container = path[:-1], [text]
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
    inner[path[-1]] = container
    return values


def shape(manifests: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Kinds, and what their parts are called."""
    return sorted((manifest["kind"], sorted({*keys(manifest)} - {"key"})) for manifest in manifests)


def keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield f"{path}.{name}"
            yield from keys(child, f"{path}.{name}")
    elif isinstance(value, list):
        for child in value:
            yield from keys(child, f"{path}[]")
    elif value is not None:
        yield f"{path}={type(value).__name__}"


def scalars(value: Any) -> Iterator[str]:
    """All texts that a manifest holds."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from scalars(child)
    elif isinstance(value, str):
        yield value


CHART_TEXTS = [
    ".".join(path)
    for path in texts(json.loads((README.parent / "values.schema.json").read_text())["properties"])
]


@pytest.mark.parametrize("name", CHART_TEXTS)
def test_no_value_writes_other_manifests(render: Any, name: str) -> None:
    path = tuple(name.split("."))
    calm = None
    for text in HOSTILE.values():
        try:
            hostile = render(values_with(path, text))
        except helm.HelmError:
            continue
        calm = calm or render(values_with(path, "abc"))
        assert shape(calm) == shape(hostile), repr(text)
        if any("abc" in scalar for scalar in scalars(calm)):
            assert any(text in scalar for scalar in scalars(hostile)), repr(text)


def test_the_operators_port_is_for_scrapes_from_the_cluster(render: Any) -> None:
    def ingress(**values: Any) -> list[dict[str, Any]]:
        manifests = render(LIGHT | values)
        (found,) = (m for m in manifests if m["kind"] == "NetworkPolicy")
        assert found["spec"]["policyTypes"] == ["Ingress"]
        labels = found["spec"]["podSelector"]["matchLabels"]
        (deployment,) = (m for m in manifests if m["kind"] == "Deployment")
        assert labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
        rules: list[dict[str, Any]] = found["spec"]["ingress"]
        return rules

    health, metrics = ingress()
    assert health == {"ports": [{"protocol": "TCP", "port": "health"}]}
    assert metrics["ports"] == [{"protocol": "TCP", "port": "metrics"}]
    assert metrics["from"] == [{"namespaceSelector": {}}]
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert ingress(networkPolicy={"metricsFrom": peers})[1]["from"] == peers
    assert ingress(metrics={"enabled": False}) == [health]
    # Pages without a password are for nobody but those who are named.
    web = {"web": {"enabled": True}}
    assert ingress(**web) == [health, metrics]
    assert ingress(**web, networkPolicy={"webFrom": peers})[2] == {
        "ports": [{"protocol": "TCP", "port": "web"}],
        "from": peers,
    }
    assert ingress(networkPolicy={"webFrom": peers}) == [health, metrics]
    off = render({**LIGHT, "networkPolicy": {"enabled": False}})
    assert "NetworkPolicy" not in {manifest["kind"] for manifest in off}


def test_the_metrics_token_comes_from_a_secret_on_both_sides(render: Any) -> None:
    manifests = render(LIGHT | EVERYTHING)
    (deployment,) = (m for m in manifests if m["kind"] == "Deployment")
    env = {e["name"]: e for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    source = {"secretKeyRef": {"name": "scrape", "key": "token"}}
    assert env["KVSERVING_METRICS_TOKEN"]["valueFrom"] == source
    (monitor,) = (m for m in manifests if m["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    credentials = {"name": "scrape", "key": "token"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": credentials}
    calm = json.dumps(render({**LIGHT, "serviceMonitor": {"enabled": True}}))
    assert "METRICS_TOKEN" not in calm
    assert '"authorization"' not in calm
