"""`accelerator: NVIDIA` asks for GPUs, lands where they are, and says so where there are none."""

from collections.abc import Iterator

import pytest

from harness.kube import Kube, wait_for
from harness.manifests import tiny_engine, tiny_serving
from harness.serving import engine_pods, wait_condition

pytestmark = pytest.mark.cluster
NAME = "gpu"
NODE_PATH = "/status/capacity/nvidia.com~1gpu"


@pytest.fixture(scope="module")
def node(kube: Kube) -> Iterator[str]:
    """A node that advertises two GPUs as an extended resource."""
    name = kube.run("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    patch = f'[{{"op": "add", "path": "{NODE_PATH}", "value": "2"}}]'
    kube.run("patch", "node", name, "--subresource=status", "--type=json", "-p", patch)
    yield name
    patch = f'[{{"op": "remove", "path": "{NODE_PATH}"}}]'
    kube.run("patch", "node", name, "--subresource=status", "--type=json", "-p", patch)


def gpus(pod: dict[str, object]) -> object:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    return spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]


def test_the_right_number_of_gpus_lands_on_the_node_and_a_lack_of_them_is_said(
    kube: Kube, namespace: str, node: str
) -> None:
    # The CPU engine's image stands in for the CUDA one: what is tested is where the pod goes.
    image = {"image": "ghcr.io/kvserving/engine-cpu:0.32.0"}
    engine = tiny_engine(accelerator="NVIDIA", parallelism={"tensor": 2, "pipeline": 1}, **image)
    kube.apply(tiny_serving(NAME, engine=engine), namespace)
    pod = wait_for(
        lambda: next(
            (p for p in engine_pods(kube, NAME, namespace) if p["spec"].get("nodeName")), None
        ),
        "the engine pod is scheduled",
        timeout_seconds=120,
    )
    assert "2" == gpus(pod)
    assert node == pod["spec"]["nodeName"]

    # A second one finds no GPU left; its status says so within 30 s of its pod.
    engine = tiny_engine(accelerator="NVIDIA", **image)
    kube.apply(tiny_serving("starved", engine=engine), namespace)
    wait_for(lambda: engine_pods(kube, "starved", namespace), "the second pod exists", 120)
    found = wait_condition(
        kube, "starved", namespace, "Degraded", "True", "Unschedulable", timeout_seconds=30
    )
    assert "nvidia.com/gpu" in found["message"]
