"""What the kubectl plugin says of a manifest offline is what a real API server says of it."""

from typing import Any

import pytest

from kubectlkit.manifests import mutated
from kvserving_kubectl.validation import check
from kvserving_kubectl.validation.documents import Document

pytestmark = pytest.mark.cluster


def _faults(manifest: dict[str, Any]) -> list[Any]:
    return list(check.faults(Document("file", manifest, {(): 1})))


def test_accepts(server: Any, accept_case: Any) -> None:
    assert [] == _faults(accept_case.manifest)
    assert "" == server.refusal(accept_case.manifest)


def test_refuses_the_same_fields_in_the_rules_own_words(server: Any, reject_case: Any) -> None:
    told = server.refusal(reject_case.manifest)
    faults = _faults(reject_case.manifest)
    assert told
    assert faults
    for fault in faults:
        assert fault.field in told
        # Rules have words of their own; the schema's keywords are put in ours.
        if not fault.message.startswith(("expected", "is required", "no such field")):
            assert fault.message in told


def test_defaults_are_the_servers(server: Any, accept_case: Any) -> None:
    stored = check.stored(Document("file", accept_case.manifest, {(): 1}))
    assert server.create(accept_case.manifest)["spec"] == stored["spec"]


def test_verdicts_agree_on_manifests_with_random_edits(server: Any, accept_case: Any) -> None:
    wrong = []
    for manifest in mutated(accept_case.manifest, count=8):
        told, faults = server.refusal(manifest), _faults(manifest)
        if bool(told) != bool(faults):
            wrong.append((manifest["spec"], told, [str(fault) for fault in faults]))
    assert [] == wrong
