"""Manifests against everything that can be known of them without a cluster."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from kvserving_kubectl.validation import rules, schema
from kvserving_kubectl.validation.documents import Document, Fault
from kvserving_operator.api.crd import DEFINITIONS
from kvserving_operator.api.v1alpha1 import API_VERSION, GROUP


@cache
def schemas() -> Mapping[str, Mapping[str, Any]]:
    """The CRDs' own schemas, by kind."""
    return {
        definition.kind: definition.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for definition in DEFINITIONS
    }


def is_ours(document: Document) -> bool:
    """Whether a manifest is of the product's group; all others are left alone."""
    return str(document.body.get("apiVersion", "")).partition("/")[0] == GROUP


def stored(document: Document) -> dict[str, Any]:
    """A manifest as the API server would store it: with its defaults, without nulls."""
    body: dict[str, Any] = schema.without_nulls(document.body)
    filled: dict[str, Any] = schema.defaulted(body, schemas()[str(body["kind"])])
    return filled


def faults(document: Document) -> Iterator[Fault]:
    """All faults of one manifest of ours.

    Rules are looked at where the schema is kept, as on the server: they are about values that it
    has let through.
    """
    version, kind = document.body.get("apiVersion"), document.body.get("kind")
    if version != API_VERSION:
        yield document.fault(("apiVersion",), f"expected {API_VERSION}, got {version}")
        return
    if not isinstance(kind, str) or kind not in schemas():
        known = ", ".join(schemas())
        yield document.fault(("kind",), f"expected one of {known}, got {kind}")
        return
    found = [document.fault(place, "stands twice") for place in document.repeated]
    body = stored(document)
    # The status is the operator's; the server drops what a user writes there.
    body.pop("status", None)
    found += _of_metadata(document, body)
    wanted = schemas()[kind]
    found += [document.fault(place, told) for place, told in schema.faults(body, wanted)]
    if not found:
        found = [document.fault(place, told) for place, told in rules.broken(body, wanted)]
    yield from sorted(found, key=lambda fault: fault.line)


def _of_metadata(document: Document, body: Mapping[str, Any]) -> Iterator[Fault]:
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        yield document.fault(("metadata",), "is required")
    elif not isinstance(metadata.get("name"), str) or not metadata["name"]:
        got = "" if "name" not in metadata else f": expected a text, got {metadata['name']!r}"
        yield document.fault(("metadata", "name"), f"is required{got}")
