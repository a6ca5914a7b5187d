"""What the chart renders: the operator's pod, its rights, and each value's effect."""

from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from kvserving_operator.api.crd import DEFINITIONS
from kvserving_operator.settings import Settings, settings_from_env

CHART = Path(__file__).parents[2] / "charts" / "kvserving"


def only(manifests: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    found = [
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
    ]
    assert len(found) == 1, [manifest["metadata"]["name"] for manifest in found]
    return found[0]


def kinds(manifests: list[dict[str, Any]]) -> list[str]:
    return [manifest["kind"] for manifest in manifests]


def pod(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = only(manifests, "Deployment")["spec"]["template"]["spec"]
    return spec


def environment(manifests: list[dict[str, Any]]) -> dict[str, str]:
    entries = pod(manifests)["containers"][0]["env"]
    return {entry["name"]: entry.get("value", "from the pod") for entry in entries}


def test_one_operator_that_is_replaced_only_after_it_is_gone(render: Any) -> None:
    deployment = only(render(), "Deployment", "kvserving-operator")
    assert deployment["metadata"]["namespace"] == "kvserving-system"
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_pod_meets_the_restricted_level(render: Any) -> None:
    spec = pod(render())
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert [set(volume) for volume in spec["volumes"]] == [{"name", "emptyDir"}]


def test_probes_give_the_lease_time_and_then_watch(render: Any) -> None:
    (container,) = pod(render())["containers"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"] == {"path": "/healthz", "port": "health"}
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"health": 8080, "metrics": 9090}


def test_the_operator_understands_its_environment(render: Any) -> None:
    values = {
        "logLevel": "DEBUG",
        "engineImages": {"cpu": "registry.example/cpu:1", "nvidia": "registry.example/cuda:1"},
        "watchNamespaces": ["blue", "green"],
        "settings": {"tickSeconds": 2, "shmSize": "1Gi", "preflightTimeoutSeconds": 1800},
    }
    settings = settings_from_env(environment(render(values)))
    assert settings.log_level == "DEBUG"
    assert settings.engine_image_cpu == "registry.example/cpu:1"
    assert settings.engine_image_nvidia == "registry.example/cuda:1"
    assert settings.namespaces == ("blue", "green")
    assert settings.tick_seconds == 2
    assert settings.shm_size == "1Gi"
    assert settings.preflight_timeout_seconds == 1800
    assert settings.lease_name == "kvserving-operator"


def test_the_web_view_is_off_and_comes_with_a_service_and_no_ingress(render: Any) -> None:
    assert "KVSERVING_WEB_LISTEN_PORT" not in environment(render())
    assert "kvserving-operator-web" not in [each["metadata"]["name"] for each in render()]
    values = {"web": {"enabled": True, "port": 9999, "hosts": ["kv.example.com", "b.example"]}}
    manifests = render(values)
    settings = settings_from_env(environment(manifests))
    assert (9999, ("kv.example.com", "b.example")) == (settings.web_listen_port, settings.hosts)
    service = only(manifests, "Service", "kvserving-operator-web")["spec"]
    (port,) = service["ports"]
    (container,) = pod(manifests)["containers"]
    named = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (9999, 9999) == (port["port"], named[port["targetPort"]])
    labels = only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert service.get("type", "ClusterIP") == "ClusterIP"
    assert "Ingress" not in kinds(manifests)


def test_traces_are_off_and_headers_come_from_a_secret(render: Any) -> None:
    assert not [name for name in environment(render()) if "OTLP" in name]
    endpoint = "http://collector.monitoring:4318/v1/traces"
    plain = environment(render({"tracing": {"endpoint": endpoint}}))
    assert endpoint == settings_from_env(plain).otlp_endpoint
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in plain
    secret = {"name": "collector", "key": "headers"}
    manifests = render({"tracing": {"endpoint": endpoint, "headersSecret": secret}})
    entries = {each["name"]: each for each in pod(manifests)["containers"][0]["env"]}
    found = entries["OTEL_EXPORTER_OTLP_HEADERS"]
    assert {"secretKeyRef": secret} == found["valueFrom"]
    assert "value" not in found


def test_without_values_the_operators_own_defaults_hold(render: Any) -> None:
    settings = settings_from_env(environment(render()))
    given = {"identity", "lease_namespace"}
    assert settings.model_dump(exclude=given) == Settings().model_dump(exclude=given)


def test_every_setting_can_be_set(chart: helm.Chart) -> None:
    schema = chart.schema if isinstance(chart.schema, dict) else yaml.safe_load(chart.schema)
    offered = {_snake(name) for name in schema["properties"]["settings"]["properties"]}
    values_of_their_own = {
        "engine_image_cpu",
        "engine_image_nvidia",
        "watch_namespaces",
        "log_level",
        "metrics_listen_port",
        "web_listen_port",
        "web_hosts",
        "otlp_endpoint",
        "metrics_token",
    }
    fixed_by_the_chart = {"health_listen", "identity", "lease_name", "lease_namespace"}
    assert offered | values_of_their_own | fixed_by_the_chart == set(Settings.model_fields)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_every_value_has_a_default_and_a_description(chart: helm.Chart) -> None:
    schema = chart.schema if isinstance(chart.schema, dict) else yaml.safe_load(chart.schema)

    def compare(properties: dict[str, Any], values: dict[str, Any], path: str) -> None:
        assert set(properties) - {"global"} == set(values), path
        for name, child in properties.items():
            assert child.get("description", "").endswith("."), f"{path}{name}"
            if "properties" in child and name != "settings":
                compare(child["properties"], values[name], f"{path}{name}.")

    compare(schema["properties"], chart.values, "")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"imag": {}}, "imag"),
        ({"logLevel": "LOUD"}, "logLevel"),
        ({"settings": {"tickSecond": 1}}, "tickSecond"),
        ({"settings": {"tickSeconds": "soon"}}, "tickSeconds"),
        ({"watchNamespaces": ["Blue"]}, "watchNamespaces"),
        ({"metrics": {"port": 80}}, "port"),
        ({"crds": {"keep": "yes"}}, "keep"),
        ({"web": {"hosts": ["a b"]}}, "hosts"),
        ({"tracing": {"endpoint": "collector:4318"}}, "endpoint"),
    ],
)
def test_a_wrong_value_is_refused(chart: helm.Chart, values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm.HelmError, match=words):
        chart.validate_schema(chart.merge_values(values))


def test_definitions_are_kept_on_uninstall(render: Any) -> None:
    names = {definition.name for definition in DEFINITIONS}
    for name in names:
        annotations = only(render(), "CustomResourceDefinition", name)["metadata"]["annotations"]
        assert annotations == {"helm.sh/resource-policy": "keep"}
    loose = only(render({"crds": {"keep": False}}), "CustomResourceDefinition", min(names))
    assert "annotations" not in loose["metadata"]


def test_the_charts_definitions_are_the_generated_ones(render: Any) -> None:
    manifests = render({"crds": {"keep": False}})
    for definition in DEFINITIONS:
        found = only(manifests, "CustomResourceDefinition", definition.name)
        assert found == definition.manifest()


def test_definitions_can_be_left_to_somebody_else(render: Any) -> None:
    assert "CustomResourceDefinition" not in kinds(render({"crds": {"install": False}}))


def test_cluster_wide_rights_without_namespaces(render: Any) -> None:
    manifests = render()
    role = only(manifests, "ClusterRole", "kvserving-operator")
    binding = only(manifests, "ClusterRoleBinding", "kvserving-operator")
    account = only(manifests, "ServiceAccount")["metadata"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_rights_in_the_named_namespaces_alone(render: Any) -> None:
    manifests = render({"watchNamespaces": ["blue", "green"], "rbac": {"aggregate": False}})
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(kinds(manifests))
    for kind in ("Role", "RoleBinding"):
        places = {
            manifest["metadata"]["namespace"]
            for manifest in manifests
            if manifest["kind"] == kind and manifest["metadata"]["name"] == "kvserving-operator"
        }
        assert places == {"blue", "green"}


def test_no_rule_is_wider_than_it_must_be(render: Any) -> None:
    rules = [
        (manifest["metadata"]["name"], rule)
        for manifest in render()
        if manifest["kind"] in ("ClusterRole", "Role")
        for rule in manifest["rules"]
    ]
    for name, rule in rules:
        for key in ("apiGroups", "resources", "verbs"):
            assert "*" not in rule[key], name
        assert not {"nodes", "namespaces", "clusterroles", "roles"} & set(rule["resources"])
        if "secrets" in rule["resources"]:
            assert set(rule["verbs"]) == {"get", "create"}


def test_routes_are_written_only_where_that_is_asked_for(render: Any) -> None:
    def groups(values: dict[str, Any]) -> set[str]:
        rules = only(render(values), "ClusterRole", "kvserving-operator")["rules"]
        return {group for rule in rules for group in rule["apiGroups"]}

    route_groups = {"gateway.networking.k8s.io", "gateway.envoyproxy.io", "discovery.k8s.io"}
    assert not route_groups & groups({})
    assert route_groups <= groups({"gateway": {"enabled": True}})


def test_no_two_objects_share_a_name(render: Any) -> None:
    manifests = render({"watchNamespaces": ["blue", "green"]})
    keys = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(keys) == len(set(keys))


def test_selectors_find_the_pod(render: Any) -> None:
    manifests = render({"podLabels": {"team": "serving"}})
    deployment = only(manifests, "Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels["team"] == "serving"
    for selector in (
        deployment["selector"]["matchLabels"],
        only(manifests, "Service")["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()


def test_metrics_can_be_switched_off(render: Any) -> None:
    manifests = render({"metrics": {"enabled": False}})
    assert "Service" not in kinds(manifests)
    assert environment(manifests)["KVSERVING_METRICS_LISTEN_PORT"] == "0"


def test_placement_and_identity_pass_through(render: Any) -> None:
    manifests = render(
        {
            "image": {"repository": "registry.example/operator", "tag": "1.2"},
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": {"example.com/a": "b"},
            "serviceAccount": {"name": "tuner", "annotations": {"example.com/role": "x"}},
            "nameOverride": "kv",
        }
    )
    spec = pod(manifests)
    assert spec["containers"][0]["image"] == "registry.example/operator:1.2"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"pool": "system"}
    assert spec["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["serviceAccountName"] == "tuner"
    assert only(manifests, "Deployment")["metadata"]["name"] == "kv"
    assert environment(manifests)["KVSERVING_LEASE_NAME"] == "kv"
    lease = only(manifests, "Role", "kv-lease")
    assert ["kv"] in [rule.get("resourceNames") for rule in lease["rules"]]


def test_an_account_of_somebody_else(render: Any) -> None:
    manifests = render({"serviceAccount": {"create": False, "name": "theirs"}})
    assert "ServiceAccount" not in kinds(manifests)
    assert pod(manifests)["serviceAccountName"] == "theirs"


def test_helm_finds_no_fault() -> None:
    report = helm.lint(str(CHART), strict=True, namespace="kvserving-system")
    assert report["total_charts_linted"] == 1
    assert not report["errors"]
    information = 1
    assert not [found for found in report["messages"] if found["severity"] > information]
