"""A namespace of the restricted level takes every pod of ours; the API server is the judge."""

import copy
from collections.abc import Iterator
from typing import Any

import helm_python as helm
import pytest
import yaml

from harness.chart import CHART, RESTRICTED, local_values
from harness.errors import CommandError
from harness.kube import Kube
from kvserving_operator.render.engine import resolve
from kvserving_operator.render.pod import pod_template
from kvserving_operator.render.preflight import preflight_pod
from kvserving_operator.settings import Settings
from operatorkit.specs import NAME, REF, engine_spec, spec_of

pytestmark = pytest.mark.cluster
NAMESPACE = "e2e-restricted"
SPECS: dict[str, dict[str, Any]] = {
    "CPU": {},
    "with a compile cache": {"engine": engine_spec(compileCache={"claimName": "cache"})},
    "from a hub": {"model": {"uri": "hf://a/b"}},
    "with a key": {"apiKeyRef": {"name": "key"}},
    "a stock image": {"engine": engine_spec(plugin="Disabled")},
    "NVIDIA": {"engine": {"accelerator": "NVIDIA", "maxNumSeqs": 16, "parallelism": {"tensor": 2}}},
}


@pytest.fixture(scope="module")
def restricted(kube: Kube) -> Iterator[str]:
    kube.create_namespace(NAMESPACE, RESTRICTED)
    yield NAMESPACE
    kube.run("delete", "namespace", NAMESPACE, "--wait=false")


def pod(template: dict[str, Any]) -> dict[str, Any]:
    """Pod of a template, as far as admission looks at it: its account need not exist."""
    spec = copy.deepcopy(template["spec"])
    spec.pop("serviceAccountName", None)
    metadata = {"name": "pod", "labels": dict(template["metadata"]["labels"])}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def judge(kube: Kube, manifest: dict[str, Any]) -> None:
    """Ask the API server whether it would take a pod; raises CommandError where not."""
    manifest = copy.deepcopy(manifest)
    for key in ("namespace", "ownerReferences"):
        manifest["metadata"].pop(key, None)
    kube.run(
        "create", "--dry-run=server", "-n", NAMESPACE, "-f", "-", stdin=yaml.safe_dump(manifest)
    )


@pytest.mark.parametrize("name", SPECS)
def test_engines_and_their_checks_are_taken(kube: Kube, restricted: str, name: str) -> None:
    template = pod_template(REF, resolve(NAME, spec_of(**SPECS[name]), Settings(), None))
    judge(kube, pod(template))
    check = preflight_pod(REF, template, "2Gi", 60)
    check["spec"].pop("serviceAccountName", None)
    judge(kube, check)


def test_the_operator_is_taken(kube: Kube, restricted: str) -> None:
    chart = helm.Chart.load(str(CHART))
    texts = chart.render(local_values(), name="kvserving", namespace=NAMESPACE)
    chart.close()
    (text,) = (text for path, text in texts.items() if path.endswith("deployment.yaml"))
    judge(kube, pod(yaml.safe_load(text)["spec"]["template"]))


def test_what_may_do_more_is_refused(kube: Kube, restricted: str) -> None:
    template = pod_template(REF, resolve(NAME, spec_of(), Settings(), None))
    for change in (
        {"allowPrivilegeEscalation": True},
        {"runAsUser": 0},
        {"capabilities": {"add": ["NET_ADMIN"]}},
    ):
        manifest = pod(template)
        manifest["spec"]["containers"][0]["securityContext"] |= change
        with pytest.raises(CommandError, match="violates PodSecurity"):
            judge(kube, manifest)
