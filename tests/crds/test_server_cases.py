"""The generated definitions on a real API server."""

import copy
from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import PARSERS

pytestmark = pytest.mark.cluster


def test_definitions_are_established(server: Any, crds: dict[str, Any]) -> None:
    for crd in crds.values():
        conditions = server.install(crd)
        assert conditions["NamesAccepted"]["status"] == "True"
        # The API server's own verdict on the structure of the schema.
        assert conditions.get("NonStructuralSchema", {}).get("status") != "True"


def test_accepts(server: Any, accept_case: Any) -> None:
    assert server.refusal(accept_case.manifest) == ""


def test_rejects_and_names_the_field(server: Any, reject_case: Any) -> None:
    message = server.refusal(reject_case.manifest)
    assert message, "the API server accepted it"
    for words in (reject_case.field, *reject_case.server):
        assert words in message


def test_defaults_are_the_models(server: Any, accept_case: Any) -> None:
    """What the API server fills in is what the models fill in."""
    parse: Any = PARSERS[accept_case.manifest["kind"]]
    stored = server.create(accept_case.manifest)
    assert parse(stored).spec == parse(accept_case.manifest).spec


def test_a_trial_is_fixed_at_creation(server: Any) -> None:
    manifest = {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVTrial",
        "metadata": {"name": "fixed"},
        "spec": {"servingRef": {"name": "chat"}, "change": {"maxActiveSeqs": 4}},
    }
    created = server.create(manifest, dry_run=False)
    edited = copy.deepcopy(created)
    edited["spec"]["change"]["maxActiveSeqs"] = 8
    where = (created["apiVersion"].partition("/")[0], "v1alpha1", "default", "kvtrials", "fixed")
    with pytest.raises(server.error) as refused:
        server.objects.replace_namespaced_custom_object(*where, edited)
    assert "a trial is fixed at creation" in refused.value.body
    server.objects.delete_namespaced_custom_object(*where)


def test_scale_and_status_are_subresources(server: Any) -> None:
    manifest = {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {"name": "scaled"},
        "spec": {
            "model": {"uri": "pvc://models/tiny-llama"},
            "engine": {"kvCacheMemory": "64Mi"},
        },
    }
    created = server.create(manifest, dry_run=False)
    group = created["apiVersion"].partition("/")[0]
    where = (group, "v1alpha1", "default", "kvservings", "scaled")
    scaled = server.objects.patch_namespaced_custom_object_scale(*where, {"spec": {"replicas": 3}})
    assert scaled["spec"]["replicas"] == 3
    status = {"status": {"replicas": 3, "selector": "kvserving.dev/serving=scaled"}}
    patched = server.objects.patch_namespaced_custom_object_status(*where, status)
    assert patched["spec"]["replicas"] == 3
    assert patched["metadata"]["generation"] == 2
    assert server.objects.get_namespaced_custom_object_scale(*where)["status"] == {
        "replicas": 3,
        "selector": "kvserving.dev/serving=scaled",
    }
    server.objects.delete_namespaced_custom_object(*where)
