"""`spec.podTemplate`: what passes through to the engine pods.

Only what placement and credentials need: the pod's shape, probes and security are the operator's.
Kubernetes' own nested types are passed on unread, so that new versions of them work unchanged.
"""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from kvserving_operator.api.base import (
    ApiModel,
    Atomic,
    ObjectName,
    Opaque,
    Quantity,
    SafeKey,
    map_by,
    matches,
    unique_by,
)
from kvserving_operator.api.rules import Checked, Rule

_OWNED_KEY = r"(^|\.)kvserving\.dev/|^app\.kubernetes\.io/(name|instance|managed-by)$"
_CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_OWNED_ENV = r"^(KVSERVING_.*|VLLM_PLUGINS|VLLM_API_KEY|HOME)$"

LabelValue = Annotated[
    str,
    StringConstraints(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"),
]
_NO_OWNED_KEYS = Rule(
    cel=f"self.all(key, !key.matches(r'{_OWNED_KEY}'))",
    holds=lambda entries: not any(matches(_OWNED_KEY, key) for key in entries),
    message="keys of kvserving.dev and app.kubernetes.io/name, instance and managed-by are set"
    " by the operator",
)


class PodMetadata(ApiModel):
    """Labels and annotations of the engine pods."""

    labels: Annotated[dict[SafeKey, LabelValue], Field(max_length=32), Checked(_NO_OWNED_KEYS)] = (
        Field(default_factory=dict)
    )
    """Labels added to the engine pods."""
    annotations: Annotated[
        dict[SafeKey, Annotated[str, StringConstraints(max_length=4096)]],
        Field(max_length=32),
        Checked(_NO_OWNED_KEYS),
    ] = Field(default_factory=dict)
    """Annotations added to the engine pods."""


class Toleration(ApiModel):
    """A taint that the pods accept."""

    key: Annotated[str, StringConstraints(max_length=317)] | None = None
    """Taint key; unset with operator Exists matches every taint."""
    operator: Annotated[str, StringConstraints(max_length=16, pattern=r"^[A-Z][A-Za-z]*$")] = (
        "Equal"
    )
    """How the value is compared, such as Equal or Exists."""
    value: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Taint value that is accepted."""
    effect: Annotated[str, StringConstraints(max_length=32, pattern=r"^[A-Z][A-Za-z]*$")] | None = (
        None
    )
    """Taint effect that is accepted; unset matches every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """How long a NoExecute taint is accepted, in seconds; unset means for ever."""


class EnvVar(ApiModel):
    """An environment variable of the engine."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$"),
        Checked(
            Rule(
                cel=f"!self.matches(r'{_OWNED_ENV}')",
                holds=lambda name: not matches(_OWNED_ENV, name),
                message="{self} is set by the operator",
            ),
            Rule(
                cel=f"self != '{_CPU_SPACE}'",
                holds=lambda name: name != _CPU_SPACE,
                message="{self} would override spec.engine.kvCacheMemory: set that instead",
            ),
        ),
    ]
    """Name of the variable."""
    value: Annotated[str, StringConstraints(max_length=8192)] | None = None
    """Plain value."""
    value_from: Annotated[dict[str, Any], Opaque] | None = None
    """Source of the value, as in a pod: a Secret, ConfigMap or pod field."""


class ObjectReference(ApiModel):
    """A name in the same namespace."""

    name: ObjectName
    """Name of the object."""


class SecretKeyReference(ApiModel):
    """An entry of a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    ] = "api-key"
    """Key in its data."""


class Resources(ApiModel):
    """Compute resources of the engine container."""

    requests: Annotated[dict[SafeKey, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Resources that a node must have free, by name."""
    limits: Annotated[dict[SafeKey, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Resources that the engine may not exceed, by name; `nvidia.com/gpu` here replaces tensor
    x pipeline."""


class PodTemplateSpec(ApiModel):
    """Placement, resources and credentials of the engine pods."""

    metadata: PodMetadata = Field(default_factory=PodMetadata, json_schema_extra={"default": {}})
    """Labels and annotations added to the engine pods."""
    node_selector: Annotated[dict[SafeKey, LabelValue], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Node labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32), Atomic] = ()
    """Taints that the pods accept."""
    affinity: Annotated[dict[str, Any], Opaque] | None = None
    """Placement rules as in a pod, passed on unchanged."""
    topology_spread_constraints: Annotated[
        tuple[Annotated[dict[str, Any], Opaque], ...], Field(max_length=16), Atomic
    ] = ()
    """Spreading rules as in a pod, passed on unchanged."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, such as `nvidia`."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    image_pull_secrets: Annotated[
        tuple[ObjectReference, ...],
        Field(max_length=16),
        map_by("name"),
        unique_by("name"),
    ] = ()
    """Secrets with registry credentials."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), map_by("name"), unique_by("name")] = ()
    """Environment variables of the engine, such as download tokens from Secrets."""
    resources: Resources = Field(default_factory=Resources, json_schema_extra={"default": {}})
    """Compute resources of the engine container."""
