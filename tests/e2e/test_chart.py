"""A release's whole life on a real cluster: custom resources are there throughout, and served.

Takes the release of the other tests away and puts it back in the end, so nothing may run beside it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import chart
from harness.errors import CommandError
from harness.kube import KVSERVING, Kube, wait_for
from harness.load import ChatLoad, in_background
from harness.manifests import MODELS_CLAIM, tiny_serving
from harness.serving import complete, engine_pods, wait_condition, wait_ready

pytestmark = [pytest.mark.cluster, pytest.mark.full]

# charts/kvserving as it was at version 0.1.0, in the commit before 0.2.0 was begun.
PREVIOUS = Path(__file__).parent / "previous" / "kvserving-0.1.0.tgz"
NAMESPACE, OTHERS = "e2e-chart", "e2e-chart-others"
NAME = "kept"
PLURALS = ("kvservings", "kvrollbackpolicies", "kvtrials")
DEFINITIONS = tuple(f"{plural}.kvserving.dev" for plural in PLURALS)
KINDS = (
    "deployments,replicasets,pods,services,serviceaccounts,secrets,configmaps,leases,roles,"
    "rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets.policy,"
    "networkpolicies.networking.k8s.io"
)
POLICY = {
    "apiVersion": "kvserving.dev/v1alpha1",
    "kind": "KVRollbackPolicy",
    "metadata": {"name": "kept"},
    "spec": {"quality": {"maxDropPercent": 7}},
}


@pytest.fixture(scope="module", autouse=True)
def put_back(kube: Kube) -> Iterator[None]:
    """Leave the release of the other tests as it was."""
    yield
    kube.create_namespace(chart.NAMESPACE, chart.RESTRICTED)
    chart.install(kube.kubeconfig, chart.local_values())


@pytest.fixture
def empty(kube: Kube) -> Iterator[None]:
    """A cluster that knows nothing of the project but two namespaces that allow little."""
    if definitions(kube) and kube.run("get", KVSERVING, "-A", "-o", "name"):
        pytest.fail("there are KVServings that this test would delete: delete them first")
    clean(kube)
    for name in (chart.NAMESPACE, NAMESPACE, OTHERS):
        kube.create_namespace(name, chart.RESTRICTED)
    for name in (NAMESPACE, OTHERS):
        kube.apply(MODELS_CLAIM, name)
    yield
    release(kube)
    clean(kube)
    for name in (NAMESPACE, OTHERS):
        kube.run("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def definitions(kube: Kube) -> list[str]:
    names = kube.run("get", "crd", "-o", "name").split()
    return [name for name in names if name.endswith(".kvserving.dev")]


def clean(kube: Kube) -> None:
    """Uninstall as the documentation says, with the namespace last."""
    chart.uninstall(kube.kubeconfig)
    kube.run("delete", "crd", *DEFINITIONS, "--ignore-not-found", "--timeout=110s")
    kube.run("delete", "namespace", chart.NAMESPACE, "--ignore-not-found", "--timeout=110s")


def release(kube: Kube) -> None:
    """Let KVServings go that no operator looks after."""
    if not definitions(kube):
        return
    listed = json.loads(kube.run("get", KVSERVING, "-A", "-o", "json"))["items"]
    for found in listed:
        patch = [{"op": "remove", "path": "/metadata/finalizers"}]
        where = found["metadata"]
        if where.get("finalizers"):
            kube.run(
                "patch", KVSERVING, where["name"], "-n", where["namespace"], "--type=json",
                "-p", json.dumps(patch),
            )  # fmt: skip


def left(kube: Kube) -> set[str]:
    """Names of what is anywhere in the cluster and bears ours."""
    text = kube.run("get", KINDS, "-A", "-o", "json")
    ours = re.compile("kvserving|kept")
    return {
        f"{found['kind']}/{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"
        for found in json.loads(text)["items"]
        if ours.search(found["metadata"]["name"])
        or ours.search(json.dumps(found["metadata"].get("labels", {})))
    }


def log(kube: Kube) -> str:
    return kube.run("logs", "-n", chart.NAMESPACE, "deployment/kvserving-operator", "--tail=-1")


def forbidden(kube: Kube) -> list[str]:
    """Lines of the operator's log about rights that it lacks."""
    return [
        line for line in log(kube).splitlines() if re.search("orbidden|cannot .* resource", line)
    ]


def uid(kube: Kube, kind: str, name: str = NAME) -> str:
    found = kube.get(kind, name, NAMESPACE)
    assert found is not None, f"{kind} {name} is gone"
    return str(found["metadata"]["uid"])


def schema_of(kube: Kube) -> dict[str, Any]:
    text = kube.run("get", "crd", "kvservings.kvserving.dev", "-o", "json")
    version = json.loads(text)["spec"]["versions"][0]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


def test_an_upgrade_keeps_serving_and_uninstalling_leaves_nothing(kube: Kube, empty: None) -> None:
    chart.install(kube.kubeconfig, chart.local_values(), chart=PREVIOUS)
    before = schema_of(kube)
    kube.apply(POLICY, NAMESPACE)
    kube.apply(tiny_serving(NAME), NAMESPACE)
    wait_ready(kube, NAME, NAMESPACE)
    kept = {kind: uid(kube, kind) for kind in (KVSERVING, "kvrollbackpolicies.kvserving.dev")}
    pods = {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, NAMESPACE)}
    load = ChatLoad(kube.service_url(NAME, NAMESPACE), "tiny", clients=2, max_tokens=16)
    with in_background(load, 3600):
        wait_for(lambda: len(load.outcomes) >= 4, "requests are served", 60)
        during = len(load.outcomes)
        chart.install(kube.kubeconfig, chart.local_values())
        # The new operator acts: it answers an edit.
        kube.patch(KVSERVING, NAME, NAMESPACE, {"spec": {"tuning": {"mode": "Recommend"}}})
        wait_ready(kube, NAME, NAMESPACE)
        wait_for(lambda: len(load.outcomes) >= during + 8, "requests are served", 60)
    assert [] == load.failures
    assert kept == {kind: uid(kube, kind) for kind in kept}
    assert pods == {pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, NAMESPACE)}
    assert set(schema_of(kube)) > set(before), "the definitions were upgraded"
    assert [] == forbidden(kube)

    kube.run("delete", KVSERVING, "--all", "-A", "--timeout=110s")
    assert [] == forbidden(kube)
    clean(kube)
    wait_for(lambda: not left(kube), "nothing is left", 110)
    assert [] == definitions(kube)


def test_in_the_wrong_order_the_documented_way_out_works(kube: Kube, empty: None) -> None:
    values = {**chart.local_values(), "watchNamespaces": [NAMESPACE]}
    values["rbac"] = {"aggregate": False}
    chart.install(kube.kubeconfig, values)
    kube.apply(tiny_serving(NAME), NAMESPACE)
    kube.apply(tiny_serving("foreign"), OTHERS)
    wait_ready(kube, NAME, NAMESPACE)
    wait_condition(kube, NAME, NAMESPACE, "Ready", "True")
    # Rights in the named namespaces alone, and nothing asked for elsewhere.
    assert [] == forbidden(kube)
    assert "status" not in (kube.get(KVSERVING, "foreign", OTHERS) or {})
    assert not [name for name in left(kube) if name.startswith("ClusterRole")]

    chart.uninstall(kube.kubeconfig)
    url = kube.service_url(NAME, NAMESPACE)
    assert complete(url, "tiny"), "engines serve on without the operator"
    with pytest.raises(CommandError, match="timed out"):
        kube.run("delete", KVSERVING, NAME, "-n", NAMESPACE, "--timeout=5s")
    assert complete(url, "tiny")
    kube.run(
        "patch", KVSERVING, NAME, "-n", NAMESPACE, "--type=json",
        "-p", '[{"op": "remove", "path": "/metadata/finalizers"}]',
    )  # fmt: skip
    wait_for(lambda: not engine_pods(kube, NAME, NAMESPACE), "Kubernetes collects engines", 110)
    clean(kube)
    wait_for(lambda: not left(kube), "nothing is left", 110)
    assert [] == definitions(kube)


def test_a_release_that_comes_back_takes_its_resources_up_again(kube: Kube, empty: None) -> None:
    chart.install(kube.kubeconfig, chart.local_values())
    kube.apply(tiny_serving(NAME), NAMESPACE)
    wait_ready(kube, NAME, NAMESPACE)
    before = (
        uid(kube, KVSERVING),
        [p["metadata"]["uid"] for p in engine_pods(kube, NAME, NAMESPACE)],
    )
    chart.uninstall(kube.kubeconfig)
    assert 3 == len(definitions(kube))
    chart.install(kube.kubeconfig, chart.local_values())
    kube.patch(KVSERVING, NAME, NAMESPACE, {"spec": {"tuning": {"mode": "Recommend"}}})
    wait_ready(kube, NAME, NAMESPACE)
    after = uid(kube, KVSERVING), [p["metadata"]["uid"] for p in engine_pods(kube, NAME, NAMESPACE)]
    assert before == after
    kube.run("delete", KVSERVING, "--all", "-A", "--timeout=110s")
