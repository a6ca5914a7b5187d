"""Install, upgrade and uninstall on a real cluster through Helm's SDK.

A copy of the chart under another API group is used, and its pod is kept from being scheduled, so
that an operator which already serves this cluster is left alone.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import helm_python as helm
import pytest
from kubernetes import client, config

from kvserving_operator.api.v1alpha1.policy import QualitySpec
from operatorkit.rights import Right, rights_in

pytestmark = pytest.mark.cluster

CHART = Path(__file__).parents[2] / "charts" / "kvserving"
GROUP = "charttest.kvserving.dev"
# Namespaces go slowly, so that a second run must not meet the first one's.
NAME = f"charttest-{token_hex(3)}"
VALUES = {
    "nameOverride": NAME,
    "watchNamespaces": [NAME],
    "rbac": {"aggregate": False},
    "nodeSelector": {"kvserving.dev/no-such-node": "true"},
}
POLICY = {
    "apiVersion": f"{GROUP}/v1alpha1",
    "kind": "KVRollbackPolicy",
    "metadata": {"name": "kept"},
    "spec": {"quality": {"maxDropPercent": 7}},
}
NEVER = [
    Right("", "secrets", "list"), Right("", "secrets", "watch"), Right("", "secrets", "delete"),
    Right("", "secrets", "patch"), Right("", "pods/exec", "create"), Right("", "pods/log", "get"),
    Right("", "pods", "patch"), Right("", "nodes", "list"), Right("", "namespaces", "list"),
    Right("", "serviceaccounts/token", "create"), Right("", "serviceaccounts", "impersonate"),
    Right("apps", "replicasets", "delete"), Right("apps", "daemonsets", "create"),
    Right("rbac.authorization.k8s.io", "roles", "create"),
    Right("rbac.authorization.k8s.io", "rolebindings", "create"),
    Right("gateway.networking.k8s.io", "httproutes", "patch"),
]  # fmt: skip
"""What an operator that somebody took over would like to have."""
POLICIES = (GROUP, "v1alpha1", NAME, "kvrollbackpolicies")


def _copy(to: Path, version: str, edit: tuple[str, str] = ("", "")) -> str:
    shutil.copytree(CHART, to)
    for path in to.rglob("*.*"):
        if path.is_file():
            path.write_text(path.read_text().replace("kvserving.dev", GROUP))
    chart = to / "Chart.yaml"
    text = re.sub(r"^version: .*$", f"version: {version}", chart.read_text(), flags=re.MULTILINE)
    chart.write_text(text)
    definition = to / "templates" / "crds" / "kvrollbackpolicies.yaml"
    definition.write_text(definition.read_text().replace(*edit))
    return str(to)


@pytest.fixture
def api() -> Iterator[Any]:
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("KUBECONFIG is not set")
    config.load_kube_config(os.environ["KUBECONFIG"])
    yield client
    definitions = client.ApiextensionsV1Api()
    for plural in ("kvservings", "kvrollbackpolicies", "kvtrials"):
        try:
            definitions.delete_custom_resource_definition(f"{plural}.{GROUP}")
        except client.ApiException as error:
            if error.status != 404:
                raise
    client.CoreV1Api().delete_namespace(NAME)


def _may(api: Any, right: Right, namespace: str, name: str = "") -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = api.V1ResourceAttributes(
        namespace=namespace, name=name, verb=right.verb, group=right.group, resource=resource,
        subresource=subresource,
    )  # fmt: skip
    spec = api.V1SubjectAccessReviewSpec(
        user=f"system:serviceaccount:{NAME}:{NAME}",
        groups=["system:serviceaccounts", f"system:serviceaccounts:{NAME}", "system:authenticated"],
        resource_attributes=attributes,
    )
    review = api.V1SubjectAccessReview(spec=spec)
    answer = api.AuthorizationV1Api().create_subject_access_review(review)
    return bool(answer.status.allowed)


def _judge_rights(api: Any) -> None:
    """The account has what its roles say in its own namespace, and nothing anywhere else."""
    roles = api.RbacAuthorizationV1Api().list_namespaced_role(NAME).items
    serialized = api.ApiClient().sanitize_for_serialization(roles)
    rights = {right for role in serialized for right in rights_in(role["rules"])}
    assert len(rights) > 30
    assert [] == [str(right) for right in rights if not _may(api, right, NAME, name=NAME)]
    assert [] == [str(right) for right in rights if _may(api, right, "default", name=NAME)]
    assert [] == [str(right) for right in NEVER if _may(api, right, NAME)]
    assert not _may(api, Right("coordination.k8s.io", "leases", "update"), NAME, "another")


def test_a_release_comes_is_upgraded_and_goes_and_the_resources_stay(
    api: Any, tmp_path: Path
) -> None:
    objects, definitions, apps = (
        api.CustomObjectsApi(),
        api.ApiextensionsV1Api(),
        api.AppsV1Api(),
    )
    first = _copy(tmp_path / "first", "0.1.0")
    second = _copy(tmp_path / "second", "0.2.0", ("MAXDROP%", "DROP%"))
    kubeconfig = os.environ["KUBECONFIG"]
    with helm.Config(kubeconfig_path=kubeconfig, namespace=NAME) as release:
        release.install(first, NAME, dict(VALUES), create_namespace=True)
        assert apps.read_namespaced_deployment(NAME, NAME).spec.replicas == 1
        _judge_rights(api)
        objects.create_namespaced_custom_object(*POLICIES, POLICY)

        release.upgrade(second, NAME, {**VALUES, "logLevel": "DEBUG"})
        container = apps.read_namespaced_deployment(NAME, NAME).spec.template.spec.containers[0]
        assert {entry.name: entry.value for entry in container.env}[
            "KVSERVING_LOG_LEVEL"
        ] == "DEBUG"
        upgraded = definitions.read_custom_resource_definition(f"kvrollbackpolicies.{GROUP}")
        columns = upgraded.spec.versions[0].additional_printer_columns
        assert "DROP%" in {column.name for column in columns}
        # What was set stays, and the rest has the defaults.
        kept = objects.get_namespaced_custom_object(*POLICIES, "kept")["spec"]["quality"]
        quality = QualitySpec(max_drop_percent=7).model_dump(mode="json", by_alias=True)
        assert quality == kept

        release.uninstall(NAME, wait="watcher", timeout=60)
        assert not apps.list_namespaced_deployment(NAME).items
        assert not api.RbacAuthorizationV1Api().list_namespaced_role(NAME).items
        assert objects.get_namespaced_custom_object(*POLICIES, "kept")["metadata"]["name"] == "kept"

        # The kept definitions belong to the release again when it comes back.
        release.install(second, NAME, dict(VALUES))
        release.uninstall(NAME, wait="watcher", timeout=60)
