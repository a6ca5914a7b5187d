"""The HTTPRoute that shares users' requests out between the tracks, and what keeps sessions."""

from typing import Any

from kvserving_operator.api.v1alpha1 import RoutingSpec
from kvserving_operator.hashing import content_hash
from kvserving_operator.kinds import Kind
from kvserving_operator.render.names import (
    CANDIDATE,
    ENGINE_PORT,
    INPUTS_ANNOTATION,
    STABLE,
    ServingRef,
)

Manifest = dict[str, Any]

TRACK_HEADER = "kvserving-track"
"""Response header that names the track an answer came from."""
USERS_PATH = "/v1"
"""Paths that lead through the gateway: not the engine's metrics, nor its runtime API."""


def route(ref: ServingRef, routing: RoutingSpec, weight: int, *, clusters: bool) -> Manifest:
    """HTTPRoute that gives `weight` percent of the requests to the candidates' track.

    With `clusters` each track has a filter. Envoy Gateway then routes by weighted clusters, whose
    choice can follow a hash of a header; without filters it has one cluster, whose weights a hash
    would put out of force.
    """
    weights = {STABLE: 100 - weight, CANDIDATE: weight}
    spec: Manifest = {
        "parentRefs": [parent(ref, routing)],
        "hostnames": list(routing.hostnames),
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": USERS_PATH}}],
                # Envoy Gateway ends an answer after 15 s otherwise, however fast it streams.
                "timeouts": {"request": "0s"},
                "backendRefs": [
                    _backend(ref, track, share, clusters) for track, share in weights.items()
                ],
            }
        ],
    }
    metadata = ref.metadata(ref.name)
    metadata["annotations"] = {INPUTS_ANNOTATION: content_hash(spec)}
    return {
        "apiVersion": Kind.HTTPRoute.api_version,
        "kind": Kind.HTTPRoute.name,
        "metadata": metadata,
        "spec": spec,
    }


def parent(ref: ServingRef, routing: RoutingSpec) -> Manifest:
    """Gateway that the route is attached to."""
    gateway = routing.gateway_ref
    found: Manifest = {
        "group": "gateway.networking.k8s.io",
        "kind": "Gateway",
        "name": gateway.name,
        "namespace": gateway.namespace or ref.namespace,
    }
    if gateway.section_name is not None:
        found["sectionName"] = gateway.section_name
    return found


def session_policy(ref: ServingRef, header: str) -> Manifest:
    """Envoy Gateway's policy by which requests with one value of a header go the same way."""
    return {
        "apiVersion": Kind.BackendTrafficPolicy.api_version,
        "kind": Kind.BackendTrafficPolicy.name,
        "metadata": ref.metadata(ref.name),
        "spec": {
            "targetRefs": [
                {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": ref.name}
            ],
            "loadBalancer": {
                "type": "ConsistentHash",
                "consistentHash": {"type": "Headers", "headers": [{"name": header}]},
            },
        },
    }


def _backend(ref: ServingRef, track: str, weight: int, clusters: bool) -> Manifest:
    backend: Manifest = {
        "group": "",
        "kind": "Service",
        "name": ref.arm_service(track),
        "port": ENGINE_PORT,
        "weight": weight,
    }
    if clusters:
        named = {"set": [{"name": TRACK_HEADER, "value": track}]}
        backend["filters"] = [{"type": "ResponseHeaderModifier", "responseHeaderModifier": named}]
    return backend
