"""Everything a KVServing owns besides its pods and their template."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvserving_operator.api.v1alpha1 import KVServingSpec
from kvserving_operator.kinds import Kind, Object
from kvserving_operator.render.names import (
    BASE_ANNOTATION,
    CANDIDATE,
    CONTENTS_ANNOTATION,
    DEPLOYMENT_LABEL,
    ENGINE_PORT,
    IMAGE_ANNOTATION,
    INPUTS_ANNOTATION,
    STABLE,
    TRACK_LABEL,
    ServingRef,
)

Manifest = dict[str, Any]

ROLLOUT_DEADLINE_SECONDS = 3600
"""The Deployment's own deadline; the operator judges roll-outs itself and earlier."""
SETTLE_SECONDS = 5
"""How long a new pod is Ready before the next old one may go: endpoints need a moment to spread."""


@dataclass(frozen=True)
class Inputs:
    """What a template was rendered from, as far as the Deployment has to tell."""

    hash: str
    base_hash: str
    image: str
    contents: str = ""
    """What decides about engines' answers, as JSON; empty where it is not known."""


def deployment(
    ref: ServingRef,
    template: Mapping[str, Any],
    spec: KVServingSpec,
    replicas: int,
    inputs: Inputs,
) -> Manifest:
    """Deployment of the engines; by default it replaces pods: a spare GPU is rare."""
    selector = dict(ref.selector)
    return _deployment(ref.metadata(ref.name), selector, template, spec, replicas, inputs)


def candidates(
    ref: ServingRef,
    template: Mapping[str, Any],
    spec: KVServingSpec,
    replicas: int,
    inputs: Inputs,
) -> Manifest:
    """Deployment of the pods of a template under trial, beside those in force.

    Its pods have the labels of all engines besides, so that users reach them as they reach the
    others. Either Deployment owns its pods, and neither takes those of the other one.
    """
    metadata = template.get("metadata") or {}
    labels = {**metadata["labels"], TRACK_LABEL: CANDIDATE, DEPLOYMENT_LABEL: CANDIDATE}
    marked = {**template, "metadata": {**metadata, "labels": labels}}
    own = ref.metadata(ref.candidates_deployment)
    return _deployment(own, dict(ref.candidates_selector), marked, spec, replicas, inputs)


def _deployment(
    metadata: dict[str, object],
    selector: dict[str, str],
    template: Mapping[str, Any],
    spec: KVServingSpec,
    replicas: int,
    inputs: Inputs,
) -> Manifest:
    # Enough to tell, should the ConfigMap with the templates be lost, what this template was made
    # from.
    metadata["annotations"] = {
        INPUTS_ANNOTATION: inputs.hash,
        BASE_ANNOTATION: inputs.base_hash,
        IMAGE_ANNOTATION: inputs.image,
        **({CONTENTS_ANNOTATION: inputs.contents} if inputs.contents else {}),
    }
    return _object(
        Kind.Deployment,
        metadata,
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": spec.rollout.max_surge,
                    "maxUnavailable": spec.rollout.max_unavailable,
                },
            },
            "minReadySeconds": SETTLE_SECONDS,
            "progressDeadlineSeconds": ROLLOUT_DEADLINE_SECONDS,
            "revisionHistoryLimit": 2,
            "template": dict(template),
        },
    )


def children(ref: ServingRef, *, routed: bool = False) -> tuple[Manifest, ...]:
    """Children that need no template, in the order in which pods need them.

    With a gateway each track has a Service of its own besides.
    """
    return (
        _object(Kind.ServiceAccount, ref.metadata(ref.name), automountServiceAccountToken=False),
        _service(ref),
        _engines_service(ref),
        *(_arm_service(ref, track) for track in (STABLE, CANDIDATE) if routed),
        _disruption_budget(ref),
        _network_policy(ref),
    )


def token_secret(ref: ServingRef, new_token: Callable[[], str]) -> Manifest:
    """Secret with a fresh token; made once, as running engines keep the one they began with."""
    return _object(
        Kind.Secret,
        ref.metadata(ref.token_secret),
        type="Opaque",
        stringData={"token": new_token()},
    )


def token_of(secret: Object) -> str | None:
    """Token in a stored Secret."""
    encoded = (secret.get("data") or {}).get("token")
    return base64.b64decode(encoded).decode() if encoded else None


def _service(ref: ServingRef) -> Manifest:
    """Users' way in without a gateway: Ready pods, whatever trial they take part in."""
    return _object(
        Kind.Service,
        ref.metadata(ref.name),
        spec={"type": "ClusterIP", "selector": dict(ref.selector), "ports": [_port()]},
    )


def _arm_service(ref: ServingRef, track: str) -> Manifest:
    """One arm of a trial, for the HTTPRoute: Ready pods of one track."""
    return _object(
        Kind.Service,
        ref.metadata(ref.arm_service(track)),
        spec={
            "type": "ClusterIP",
            "selector": {**ref.selector, TRACK_LABEL: track},
            "ports": [_port()],
        },
    )


def _engines_service(ref: ServingRef) -> Manifest:
    """Scrapers' way to every engine, also one that is loading or under test."""
    return _object(
        Kind.Service,
        ref.metadata(ref.engines_service),
        spec={
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict(ref.selector),
            "ports": [_port()],
        },
    )


def _disruption_budget(ref: ServingRef) -> Manifest:
    """One engine at a time may be evicted; a single replica still lets its node be drained."""
    return _object(
        Kind.PodDisruptionBudget,
        ref.metadata(ref.name),
        spec={"maxUnavailable": 1, "selector": {"matchLabels": dict(ref.selector)}},
    )


def _network_policy(ref: ServingRef) -> Manifest:
    """Only the engine's port, from anywhere: users and gateways may live in any namespace.

    The runtime API shares that port and is protected by its token; every other port of the pod is
    closed.
    """
    return _object(
        Kind.NetworkPolicy,
        ref.metadata(ref.name),
        spec={
            "podSelector": {"matchLabels": dict(ref.selector)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": ENGINE_PORT}]}],
        },
    )


def _port() -> dict[str, Any]:
    return {"name": "http", "port": ENGINE_PORT, "protocol": "TCP", "targetPort": "http"}


def _object(kind: Kind, metadata: dict[str, object], **fields: Any) -> Manifest:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **fields}
