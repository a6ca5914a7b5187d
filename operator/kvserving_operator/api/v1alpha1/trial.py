"""KVTrial: one change under test; its status is the audit trail of the test."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from kvserving_kernels.formats import KVCacheDType
from kvserving_operator.api.base import (
    ApiModel,
    CamelCaseText,
    Count,
    DecimalText,
    Generation,
    ImageName,
    StatusModel,
    Text,
    Timestamp,
    map_by,
)
from kvserving_operator.api.conditions import Condition
from kvserving_operator.api.metadata import ResourceModel
from kvserving_operator.api.rules import Rule
from kvserving_operator.api.v1alpha1.kv_cache import EvictionSpec
from kvserving_operator.api.v1alpha1.pod_template import ObjectReference
from kvserving_operator.api.v1alpha1.policy import KVRollbackPolicySpec


class RequestedBy(StrEnum):
    """Who asked for a trial."""

    TUNER = "Tuner"
    USER = "User"
    SPEC = "Spec"


class RequiredGain(StrEnum):
    """What a change has to gain in goodput before it is promoted."""

    FASTER = "Faster"
    CAPACITY = "Capacity"


class Control(StrEnum):
    """What a person asks of a trial."""

    RUN = "Run"
    PAUSE = "Pause"
    PROMOTE = "Promote"
    ROLL_BACK = "RollBack"


class TrialState(StrEnum):
    """Where a trial stands."""

    PENDING = "Pending"
    SCREENING = "Screening"
    RUNNING = "Running"
    PAUSED = "Paused"
    APPROVAL = "Approval"
    PROMOTING = "Promoting"
    ROLLING_BACK = "RollingBack"
    FINISHED = "Finished"


class Verdict(StrEnum):
    """How a trial ended."""

    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"
    INCONCLUSIVE = "Inconclusive"
    VOID = "Void"
    FAILED = "Failed"


class ChangeSpec(ApiModel):
    """Settings of the candidate; what is unset stays as it is."""

    rules = (
        Rule(
            cel="has(self.kvCacheDtype) || has(self.eviction) || has(self.maxActiveSeqs)"
            " || has(self.engineImage) || has(self.modelRevision) || has(self.startUp)",
            holds=lambda change: bool(change.model_fields_set),
            message="expected at least one of kvCacheDtype, eviction, maxActiveSeqs, engineImage,"
            " modelRevision and startUp",
        ),
    )

    kv_cache_dtype: KVCacheDType | None = None
    """KV dtype of the candidate."""
    eviction: EvictionSpec | None = None
    """Eviction of the candidate."""
    max_active_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Cap on running sequences in one candidate pod."""
    engine_image: ImageName | None = None
    """Engine image of the candidate."""
    model_revision: (
        Annotated[
            str,
            StringConstraints(
                min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
            ),
        ]
        | None
    ) = None
    """Model revision of the candidate."""
    start_up: Text | None = None
    """What is new in the template of the candidate's pods, in words; the operator sets it in trials
    of an edit of the spec, and takes no other one."""


class KVTrialSpec(ApiModel):
    """The change and the rule that judges it; fixed at creation but for `control`."""

    rules = (
        Rule(
            cel="self.servingRef == oldSelf.servingRef && self.change == oldSelf.change"
            " && self.policy == oldSelf.policy && self.requestedBy == oldSelf.requestedBy"
            " && has(self.requiredGain) == has(oldSelf.requiredGain)"
            " && (!has(self.requiredGain) || self.requiredGain == oldSelf.requiredGain)"
            " && has(self.servingGeneration) == has(oldSelf.servingGeneration)"
            " && (!has(self.servingGeneration)"
            " || self.servingGeneration == oldSelf.servingGeneration)",
            # Only the API server knows the former object.
            holds=lambda _: True,
            message="a trial is fixed at creation, but for control: create another KVTrial for"
            " another change",
        ),
    )

    serving_ref: ObjectReference
    """KVServing in the same namespace that is changed."""
    serving_generation: Generation | None = None
    """Generation of the KVServing that the trial belongs to; an edit of the changed field
    voids it."""
    change: ChangeSpec
    """Settings of the candidate."""
    policy: KVRollbackPolicySpec = Field(
        default_factory=KVRollbackPolicySpec, json_schema_extra={"default": {}}
    )
    """Copy of the policy as it was when the trial began."""
    requested_by: RequestedBy = RequestedBy.USER
    """Who asked for the trial."""
    required_gain: RequiredGain | None = None
    """Ratio of goodput with the change to goodput without it that has to be shown before
    promotion: Faster, above 1; Capacity, above 0.99. Unset: Faster where the tuner asked for the
    trial, and nothing where a person did."""
    control: Control = Control.RUN
    """What a person asks of the trial: to run, to pause (clocks stop), to promote it once it has
    passed (the approval that a manual policy waits for), or to roll it back now."""


class TrialEvidence(StatusModel):
    """One guard or probe of a trial."""

    name: CamelCaseText
    """What was judged."""
    outcome: CamelCaseText
    """Passed, Failed, Inconclusive, or LeftOut where it says nothing in this trial."""
    value: DecimalText | None = None
    """Measured value, in the unit that the name states."""
    threshold: DecimalText | None = None
    """Bound that the value is held against."""
    lower: DecimalText | None = None
    """Lower end of the interval that holds the value."""
    upper: DecimalText | None = None
    """Upper end of the interval that holds the value; unset where nothing bounds it."""
    samples: Count | None = None
    """Samples behind the value."""
    e_value: DecimalText | None = None
    """Evidence against the null hypothesis; larger is stronger."""
    reason: CamelCaseText | None = None
    """Machine-readable cause of the outcome."""


class KVTrialStatus(StatusModel):
    """Progress and outcome of the trial."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), map_by("type")] = ()
    """Accepted."""
    observed_generation: Generation | None = None
    """Generation of the spec that the status describes."""
    state: TrialState | None = None
    """Where the trial stands."""
    summary: Text | None = None
    """The change in words, such as `KVCacheDtype bfloat16 -> fp8_e4m3`."""
    step: Count | None = None
    """Step that runs, counted from 0."""
    step_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of traffic that the step asks for, in percent."""
    started_at: Timestamp | None = None
    """When the candidate first served, RFC 3339."""
    finished_at: Timestamp | None = None
    """When the verdict was reached, RFC 3339."""
    verdict: Verdict | None = None
    """How the trial ended."""
    reason: CamelCaseText | None = None
    """Machine-readable cause of the verdict."""
    message: Text | None = None
    """One sentence with the numbers behind the verdict."""
    evidence: Annotated[tuple[TrialEvidence, ...], Field(max_length=64), map_by("name")] = ()
    """Guards and probes with their numbers."""
    quiet_blocks: Count | None = None
    """Blocks of time in which no engine was probed: guards and the gain compare these."""
    probed_blocks: Count | None = None
    """Blocks in which engines with the change were: nothing but failed requests is compared."""


class KVTrial(ResourceModel):
    """One change under test."""

    spec: KVTrialSpec
    """The change and the rule that judges it."""
    status: KVTrialStatus = Field(default_factory=KVTrialStatus)
    """Progress and outcome."""
