"""One cluster, one operator, one namespace per test module, real engines."""

from collections.abc import Iterator

import pytest

from harness import chart
from harness.kube import KVSERVING, Kube, wait_for
from harness.manifests import MODELS_CLAIM


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    with Kube() as kube:
        yield kube


@pytest.fixture(scope="session")
def operator(kube: Kube) -> None:
    """The operator of this checkout, installed by its chart."""
    kube.create_namespace(chart.NAMESPACE, chart.RESTRICTED)
    chart.install(kube.kubeconfig, chart.local_values())


@pytest.fixture(scope="module")
def namespace(kube: Kube, operator: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace with the models in it; everything in it is deleted afterwards."""
    name = "e2e-" + request.module.__name__.rpartition("test_")[2].replace("_", "-")
    kube.create_namespace(name)
    kube.apply(MODELS_CLAIM, name)
    yield name
    kube.run("delete", KVSERVING, "--all", "-n", name, "--wait", "--timeout=120s")
    wait_for(
        lambda: not kube.objects("pods", name, "kvserving.dev/serving"),
        f"the engines of namespace {name} are gone",
        timeout_seconds=120,
    )
    kube.run("delete", "namespace", name, "--wait=false")
