"""Names read from manifests without a YAML parser agree with a YAML parser."""

from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from localcluster.errors import ApiError, LocalClusterError
from localcluster.kubeapi import object_name, split_documents
from localcluster.layout import REPOSITORY, Layout
from localcluster.volumes import POOL_SIZE, released, volume_documents

LAYOUT = Layout(cache=Path("/cache"))
VALUES = {"coredns_image": "docker.io/local/coredns:1", "dns_address": "10.96.0.10"}


def documents(name: str) -> list[str]:
    text = Template((LAYOUT.manifests / name).read_text()).substitute(VALUES)
    return list(split_documents(text))


@pytest.mark.parametrize("name", ["coredns.yaml", "storage-classes.yaml"])
def test_names_agree_with_a_yaml_parser(name: str) -> None:
    text = Template((LAYOUT.manifests / name).read_text()).substitute(VALUES)
    parsed = list(yaml.safe_load_all(text))
    found = [object_name(document) for document in documents(name)]
    assert len(found) == len(parsed)
    for ours, theirs in zip(found, parsed, strict=True):
        metadata = theirs["metadata"]
        assert (ours.api_version, ours.kind) == (theirs["apiVersion"], theirs["kind"])
        assert (ours.name, ours.namespace) == (metadata["name"], metadata.get("namespace"))


def test_paths_follow_group_and_scope() -> None:
    paths = [object_name(document).path for document in documents("coredns.yaml")]
    assert "/api/v1/namespaces/kube-system/serviceaccounts/coredns" in paths
    assert "/apis/apps/v1/namespaces/kube-system/deployments/coredns" in paths
    assert "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:coredns" in paths


def test_an_unknown_kind_and_a_nameless_object_are_refused() -> None:
    with pytest.raises(LocalClusterError, match="kind Pod: expected one of"):
        _ = object_name("apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n").path
    with pytest.raises(LocalClusterError, match=r"without apiVersion, kind or metadata\.name"):
        object_name("kind: Pod\n")


@pytest.mark.parametrize(
    ("status", "passing"),
    [(0, True), (429, True), (500, True), (503, True), (403, False), (404, False), (422, False)],
)
def test_only_what_may_pass_is_worth_another_try(status: int, passing: bool) -> None:
    assert ApiError(status, "").passing is passing


def test_the_pools_have_volumes_of_both_classes_with_distinct_names() -> None:
    volumes: list[Any] = [yaml.safe_load(text) for text in volume_documents(LAYOUT)]
    assert len({volume["metadata"]["name"] for volume in volumes}) == 2 * POOL_SIZE
    by_class = {volume["spec"]["storageClassName"]: volume["spec"] for volume in volumes}
    models, cache = by_class["kvserving-models"], by_class["kvserving-cache"]
    assert models["local"]["path"] == "/cache/models"
    assert models["accessModes"] == ["ReadOnlyMany"]
    assert cache["local"]["path"] == "/cache/compile"
    assert "ReadWriteMany" in cache["accessModes"]
    assert all(spec["persistentVolumeReclaimPolicy"] == "Retain" for spec in by_class.values())


def test_example_claims_ask_for_what_the_pools_offer() -> None:
    text = (REPOSITORY / "hack/localcluster/manifests/claims.example.yaml").read_text()
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in yaml.safe_load_all(text)}
    assert claims["models"]["storageClassName"] == "kvserving-models"
    assert claims["compile-cache"]["storageClassName"] == "kvserving-cache"


def test_only_released_pool_volumes_are_returned() -> None:
    def volume(name: str, phase: str, **labels: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": labels}, "status": {"phase": phase}}

    pool = {"kvserving.dev/pool": "kvserving-models"}
    listed = {
        "items": [
            volume("free", "Available", **pool),
            volume("used", "Bound", **pool),
            volume("gone", "Released", **pool),
            volume("theirs", "Released"),
        ]
    }
    assert released(listed) == ["gone"]
