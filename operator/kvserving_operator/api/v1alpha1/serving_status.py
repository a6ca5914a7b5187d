"""Status of a KVServing: what the engines report, and what the tuner decided.

`effective` is read back from the pods and never copied from the spec. Numbers with a fraction are
text, since the API has no floats.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from kvserving_operator.api.base import (
    CamelCaseText,
    Count,
    DecimalText,
    Generation,
    ObjectName,
    Percent,
    StatusModel,
    Text,
    Timestamp,
    map_by,
)
from kvserving_operator.api.conditions import Condition

MIXED: Literal["Mixed"] = "Mixed"
MAX_PODS = 64

CountOrMixed = Annotated[
    int | Literal["Mixed"],
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 16,
        }
    ),
]
Word = Annotated[str, StringConstraints(max_length=63)]
Value = Annotated[str, StringConstraints(max_length=128)]


class CostClass(StrEnum):
    """What a change costs the service."""

    LIVE = "Live"
    ROUTE = "Route"
    RESTART = "Restart"


class EffectiveStatus(StatusModel):
    """Settings in force in the ready pods; `Mixed` where pods differ."""

    kv_cache_dtype: Word | None = None
    """Resolved KV dtype, never `auto`."""
    eviction: Word | None = None
    """Eviction policy."""
    max_active_seqs: CountOrMixed | None = None
    """Cap on sequences that run at once in one pod."""
    max_num_seqs: CountOrMixed | None = None
    """Sequences that one pod reserved room for at start."""
    max_scheduled_tokens: CountOrMixed | None = None
    """Cap on tokens that one engine step may process."""
    engine_version: Word | None = None
    """Version of vLLM that the engines report."""
    plugin_version: Word | None = None
    """Version of the KVServing plugin; unset for a stock image."""


class PodState(StrEnum):
    """Where one engine pod stands."""

    PENDING = "Pending"
    STARTING = "Starting"
    READY = "Ready"
    NOT_READY = "NotReady"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class PodStatus(StatusModel):
    """One engine pod."""

    name: ObjectName
    """Name of the pod."""
    state: PodState
    """Where the pod stands."""
    node: Word | None = None
    """Node that the pod runs on."""
    kv_cache_dtype: Word | None = None
    """Resolved KV dtype that the pod reports."""
    max_active_seqs: Count | None = None
    """Cap on running sequences that the pod reports."""
    restarts: Count = 0
    """Restarts of the engine container."""
    message: Text | None = None
    """Why the pod is not ready."""


class PromotedValue(StatusModel):
    """A value that the tuner put in force in place of the spec's."""

    field: CamelCaseText
    """Setting, by its knob name."""
    value: Value
    """Value in force."""
    trial: ObjectName | None = None
    """KVTrial that promoted it; unset for a live cap, which needs none."""
    decision: Word | None = None
    """Decision that put it in force."""
    spec_generation: Generation
    """Generation of the spec that the value belongs to; editing the field ends it."""
    at: Timestamp | None = None
    """When it came into force, RFC 3339."""


class CapacityStatus(StatusModel):
    """Size of the KV cache in one pod, as the engine reports it."""

    kv_cache_bytes: Count | None = None
    """Memory of the cache, in bytes."""
    kv_cache_tokens: Count | None = None
    """Tokens that fit."""
    block_size: Count | None = None
    """Tokens in one block."""
    blocks: Count | None = None
    """Blocks that the cache has."""
    bytes_per_token: DecimalText | None = None
    """Memory of one token over all layers, in bytes."""
    max_concurrency: DecimalText | None = None
    """Sequences of the longest length that fit at once."""


class Evidence(StatusModel):
    """One number behind a decision."""

    name: CamelCaseText
    """What was measured, with its unit."""
    value: Value
    """Value as text; `unknown` where it could not be measured."""


Numbers = Annotated[tuple[Evidence, ...], Field(max_length=32), map_by("name")]


class Recommendation(StatusModel):
    """A change that the tuner would make."""

    id: Word
    """Identity of the decision."""
    at: Timestamp
    """When it was made, RFC 3339."""
    knob: CamelCaseText
    """Setting to change."""
    from_value: Value | None = None
    """Value in force."""
    to_value: Value
    """Recommended value."""
    cost_class: CostClass
    """What the change costs."""
    reason: CamelCaseText
    """Machine-readable cause."""
    message: Text
    """One sentence with the numbers behind it."""


class DecisionAction(StrEnum):
    """What a decision asks for."""

    HOLD = "Hold"
    CHANGE = "Change"
    RECOMMEND = "Recommend"
    TRIAL = "Trial"


class DecisionStatus(StatusModel):
    """The latest decision of the tuner."""

    id: Word
    """Identity of the decision, as in Events and the audit log."""
    at: Timestamp
    """When it was taken, RFC 3339."""
    diagnosis: CamelCaseText
    """State of the service that the numbers show."""
    action: DecisionAction
    """What is to be done."""
    outcome: CamelCaseText | None = None
    """What became of it, such as Applied or Rejected."""
    knob: CamelCaseText | None = None
    """Setting that changes."""
    from_value: Value | None = None
    """Value before."""
    to_value: Value | None = None
    """Value after."""
    cost_class: CostClass | None = None
    """What the change costs."""
    reason: CamelCaseText
    """Machine-readable cause."""
    message: Text
    """One sentence with the numbers behind it."""
    numbers: Numbers = ()
    """The numbers behind the decision."""


class Split(StrEnum):
    """By what users' requests are shared out between engines with a change and the others."""

    ROUTE = "Route"
    CAPACITY = "Capacity"


class Sessions(StrEnum):
    """Whether a session stays on its side of a trial."""

    KEPT = "Kept"
    NOT_KEPT = "NotKept"


class TrafficStatus(StatusModel):
    """How users' requests reach the engines; only with `spec.routing`."""

    split: Split | None = None
    """What shares requests out: the weights of the HTTPRoute, or capacity, where each pod gets as
    much as any other."""
    step_percent: Percent | None = None
    """Share that the step of the trial under way asks for, in percent."""
    candidate_weight_percent: Percent | None = None
    """Weight that the HTTPRoute gives to the pods with the change, in percent."""
    candidate_share_percent: DecimalText | None = None
    """Share of the finished requests that these pods had under this weight, in percent."""
    requests: Count | None = None
    """Finished requests behind that share."""
    sessions: Sessions | None = None
    """Whether requests with the same session header stay on one side."""
    message: Text | None = None
    """Why a share is another than asked for or promised, or sessions are not kept."""


class VerdictStatus(StatusModel):
    """Outcome of a trial, kept to avoid trying the same again."""

    trial: ObjectName
    """Name of the KVTrial."""
    field: CamelCaseText
    """Setting that was tried."""
    value: Value
    """Value that was tried."""
    verdict: CamelCaseText
    """Promoted, RolledBack, Inconclusive, Void or Failed."""
    reason: CamelCaseText | None = None
    """Machine-readable cause."""
    at: Timestamp
    """When it was reached, RFC 3339."""


class PreflightState(StrEnum):
    """Where the check of new engine settings stands."""

    RUNNING = "Running"
    PASSED = "Passed"
    REJECTED = "Rejected"
    SKIPPED = "Skipped"


class PreflightStatus(StatusModel):
    """Check of the engine settings before any pod is replaced."""

    template_hash: Word
    """Identity of the pod template that was checked."""
    state: PreflightState
    """Where the check stands."""
    field: Value | None = None
    """Field at fault."""
    reason: CamelCaseText | None = None
    """Machine-readable cause of a rejection."""
    message: Text | None = None
    """What the engine said."""
    at: Timestamp | None = None
    """When the state was reached, RFC 3339."""


class KVServingStatus(StatusModel):
    """What the operator observed and decided."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), map_by("type")] = ()
    """Ready, Progressing, Degraded, MetricsAvailable, QualityGate, TuningActive, RolledBack and
    Routed."""
    reason: Word | None = None
    """What to know first: what is wrong, else what is under way, else how Ready is."""
    observed_generation: Generation | None = None
    """Generation of the spec that the status describes."""
    replicas: Count | None = None
    """Engine pods that exist."""
    ready_replicas: Count | None = None
    """Engine pods that answer completions."""
    updated_replicas: Count | None = None
    """Engine pods that run the current template."""
    selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Label selector of the engine pods, for the scale subresource."""
    endpoint: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Address of the OpenAI-compatible API inside the cluster."""
    template_hash: Word | None = None
    """Identity of the rendered pod template in force."""
    effective: EffectiveStatus | None = None
    """Settings in force, read back from the ready pods."""
    capacity: CapacityStatus | None = None
    """Size of the KV cache in one pod, the smallest where pods differ."""
    pods: Annotated[tuple[PodStatus, ...], Field(max_length=MAX_PODS), map_by("name")] = ()
    """Engine pods, at most 64."""
    promoted: Annotated[tuple[PromotedValue, ...], Field(max_length=16), map_by("field")] = ()
    """Values that the tuner put in force in place of the spec's."""
    recommendation: Recommendation | None = None
    """Change that the tuner would make."""
    last_decision: DecisionStatus | None = None
    """Latest decision of the tuner."""
    traffic: TrafficStatus | None = None
    """How users' requests reach the engines, with a gateway."""
    verdicts: Annotated[tuple[VerdictStatus, ...], Field(max_length=16), map_by("trial")] = ()
    """Latest outcomes of trials."""
    preflight: PreflightStatus | None = None
    """Latest check of engine settings before a rollout."""
