"""The operator may die at any time: the end state is the same, and nothing is made twice."""

import time

import pytest

from harness import chart
from harness.kube import KVSERVING, Kube, wait_for
from harness.manifests import tiny_serving
from harness.serving import complete, engine_pods, wait_ready

pytestmark = pytest.mark.cluster
NAME = "survivor"
CHILDREN = (
    "deployments,services,serviceaccounts,secrets,poddisruptionbudgets.policy,"
    "networkpolicies.networking.k8s.io"
)


def children(kube: Kube, namespace: str) -> dict[str, str]:
    text = kube.run(
        "get", CHILDREN, "-n", namespace, "-l", f"kvserving.dev/serving={NAME}",
        "-o", r'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}{"\n"}{end}',
    )  # fmt: skip
    return dict(line.split(" ") for line in text.splitlines() if line)


@pytest.mark.parametrize(
    "delay_seconds",
    [
        pytest.param(0.5, marks=pytest.mark.full),
        6.0,
        pytest.param(25.0, marks=pytest.mark.full),
    ],
)
def test_killed_while_a_serving_comes_up(kube: Kube, namespace: str, delay_seconds: float) -> None:
    kube.apply(tiny_serving(NAME), namespace)
    time.sleep(delay_seconds)
    chart.kill_operator(kube)
    wait_ready(kube, NAME, namespace)
    made = children(kube, namespace)
    expected = {
        f"Deployment/{NAME}", f"Service/{NAME}", f"Service/{NAME}-engines",
        f"ServiceAccount/{NAME}",
        f"Secret/{NAME}-token", f"NetworkPolicy/{NAME}", f"PodDisruptionBudget/{NAME}",
    }  # fmt: skip
    assert expected == set(made)
    assert 1 == len(engine_pods(kube, NAME, namespace))
    assert complete(kube.service_url(NAME, namespace), "tiny")

    # A restart with everything in place changes nothing: same objects, same pod.
    pods = [pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, namespace)]
    chart.kill_operator(kube)
    kube.run("rollout", "status", "deployment/kvserving-operator", "-n", chart.NAMESPACE)
    time.sleep(15)
    assert made == children(kube, namespace)
    assert pods == [pod["metadata"]["uid"] for pod in engine_pods(kube, NAME, namespace)]

    kube.run("delete", KVSERVING, NAME, "-n", namespace, "--wait", "--timeout=60s")
    wait_for(lambda: not children(kube, namespace), "every child is gone", timeout_seconds=90)
    wait_for(lambda: not engine_pods(kube, NAME, namespace), "every pod is gone", 90)
