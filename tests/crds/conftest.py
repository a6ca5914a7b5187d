"""The accept and reject cases, and the API server they are tried on."""

import copy
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from operatorkit.cases import cases

CRDS = Path(__file__).parents[2] / "crds"
# A group of our own, so that an installed KVServing on the same cluster is left alone.
TEST_GROUP = "crdtest.kvserving.dev"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for verdict in ("accept", "reject"):
        if f"{verdict}_case" in metafunc.fixturenames:
            found = [pytest.param(case, id=case.id) for case in cases(verdict)]
            metafunc.parametrize(f"{verdict}_case", found)


@pytest.fixture(scope="session")
def crds() -> dict[str, dict[str, Any]]:
    """The generated CustomResourceDefinitions by kind."""
    loaded = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    return {crd["spec"]["names"]["kind"]: crd for crd in loaded}


class Server:
    """A real API server that knows our resources under a test group."""

    def __init__(self, crds: dict[str, dict[str, Any]]) -> None:
        from kubernetes import client, config

        config.load_kube_config(os.environ["KUBECONFIG"])
        self.plurals = {kind: crd["spec"]["names"]["plural"] for kind, crd in crds.items()}
        self.objects = client.CustomObjectsApi()
        self.definitions = client.ApiextensionsV1Api()
        self.error = client.ApiException

    def install(self, crd: dict[str, Any]) -> dict[str, Any]:
        """Create a definition under the test group and wait until it is served."""
        name = f"{crd['spec']['names']['plural']}.{TEST_GROUP}"
        moved = copy.deepcopy(crd)
        moved["metadata"] = {"name": name}
        moved["spec"]["group"] = TEST_GROUP
        # `kubectl get kvs` must go on meaning the installed one.
        moved["spec"]["names"].pop("shortNames", None)
        self.remove(name)
        self.definitions.create_custom_resource_definition(moved)
        for _ in range(100):
            found = self.definitions.read_custom_resource_definition(name).to_dict()
            conditions = {
                condition["type"]: condition for condition in found["status"]["conditions"] or ()
            }
            if conditions.get("Established", {}).get("status") == "True":
                return conditions
            time.sleep(0.2)
        raise TimeoutError(f"{name} was not established: {conditions}")

    def remove(self, name: str) -> None:
        """Delete a definition and wait until it is gone."""
        for _ in range(100):
            try:
                self.definitions.delete_custom_resource_definition(name)
            except self.error as error:
                if error.status == 404:
                    return
                raise
            time.sleep(0.2)
        raise TimeoutError(f"{name} is still there")

    def create(self, manifest: dict[str, Any], dry_run: bool = True) -> dict[str, Any]:
        """Create an object as `kubectl apply` would, strict about unknown fields."""
        body = {**manifest, "apiVersion": f"{TEST_GROUP}/v1alpha1"}
        created: dict[str, Any] = self.objects.create_namespaced_custom_object(
            TEST_GROUP,
            "v1alpha1",
            "default",
            self.plurals[manifest["kind"]],
            body,
            field_validation="Strict",
            **({"dry_run": "All"} if dry_run else {}),
        )
        return created

    def refusal(self, manifest: dict[str, Any]) -> str:
        """Give the message with which the server refuses a manifest; empty when it does not."""
        try:
            self.create(manifest)
        except self.error as error:
            return str(yaml.safe_load(error.body)["message"])
        return ""


@pytest.fixture(scope="package")
def server(crds: dict[str, dict[str, Any]]) -> Iterator[Server]:
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("KUBECONFIG is not set")
    server = Server(crds)
    for crd in crds.values():
        server.install(crd)
    yield server
    for plural in server.plurals.values():
        server.remove(f"{plural}.{TEST_GROUP}")
