"""KVRollbackPolicy: how a change is tried, judged and undone; shared by many KVServings."""

from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvserving_operator.api.base import (
    ApiModel,
    AsSet,
    Atomic,
    Generation,
    Seconds,
    StatusModel,
    Unique,
    map_by,
)
from kvserving_operator.api.conditions import Condition
from kvserving_operator.api.metadata import ResourceModel
from kvserving_operator.api.partial import partial
from kvserving_operator.api.rules import Checked, Rule
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.trials.plan import Guard

GuardPercent = Annotated[int, Field(ge=0, le=1000)]


class SplitBy(StrEnum):
    """What stays on one side of an A/B."""

    SESSION = "Session"
    REQUEST = "Request"


class SingleReplica(StrEnum):
    """What a service with one replica does."""

    SWITCH_IN_PLACE = "SwitchInPlace"
    REFUSE = "Refuse"


class OnStall(StrEnum):
    """What happens when evidence stays away."""

    ROLLBACK = "Rollback"
    HOLD = "Hold"


class Approval(StrEnum):
    """Who promotes a change that passed."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class Screening(StrEnum):
    """Whether probes judge a change before any engine has it."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class FallbackDType(StrEnum):
    """16-bit dtypes that the fleet returns to."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def _rising(steps: tuple[int, ...]) -> bool:
    return all(earlier < later for earlier, later in pairwise(steps))


class ABSpec(ApiModel):
    """Exposure of the candidate."""

    steps: Annotated[
        tuple[Annotated[int, Field(ge=1, le=100)], ...],
        Field(min_length=1, max_length=16),
        Atomic,
        Checked(
            Rule(
                cel="self.isSorted() && self.all(step, self.exists_one(other, other == step))",
                holds=_rising,
                message="shares must rise from step to step",
            )
        ),
    ] = (5, 25, 50)
    """Share of traffic on the candidate in each step, in percent, rising."""
    min_requests: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    """Requests that the candidate must answer in each step."""
    min_duration_seconds: Seconds = 300
    """Shortest time of each step, in seconds; the clock runs only while the candidate serves."""
    split_by: SplitBy = SplitBy.SESSION
    """What stays on one side of the A/B."""
    single_replica: SingleReplica = SingleReplica.SWITCH_IN_PLACE
    """What a service with one replica does: switch in alternating blocks of time, or refuse
    the trial."""
    stall_timeout_seconds: Annotated[int, Field(ge=60, le=604_800)] = 900
    """Time without usable evidence after which `onStall` applies, in seconds."""
    on_stall: OnStall = OnStall.HOLD
    """What happens when evidence stays away for that long."""
    approval: Approval = Approval.AUTOMATIC
    """Who promotes a change that passed."""


class QualitySpec(ApiModel):
    """Bounds on output quality."""

    rules = (
        Rule(
            cel="self.minSamples <= self.maxSamples",
            holds=lambda spec: spec.min_samples <= spec.max_samples,
            message="must be at most maxSamples ({self.maxSamples}), got {self.minSamples}",
            field="minSamples",
        ),
    )

    max_drop_percent: Annotated[int, Field(ge=0, le=100)] = 2
    """Largest accepted drop against the 16-bit cache, in percent; each probe and length counts
    alone and the worst decides."""
    false_rollback_percent: Annotated[int, Field(ge=1, le=20)] = 1
    """Accepted chance of rolling back a change that is within the bound, in percent."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    """Paired samples before any verdict."""
    max_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 4000
    """Paired samples after which an open verdict is Inconclusive."""
    screening: Screening = Screening.ENABLED
    """Whether probes judge a format as if the cache had it, before any engine serves with it;
    without that, the first users tell."""
    probes: Annotated[tuple[Probe, ...], Field(min_length=1, max_length=16), AsSet, Unique] = tuple(
        Probe
    )
    """Probes that count. Likelihood is asked where the format changes; eviction plays no part in
    it. Needle, Recall, StructuredOutput and Groundedness are tasks that are made up, asked of
    engines in 16 bits too; References are a user's own prompts that have one."""


class GuardsSpec(ApiModel):
    """Bounds on what a change may cost in service, against the stable settings."""

    disabled: Annotated[tuple[Guard, ...], Field(max_length=len(Guard)), AsSet, Unique] = ()
    """Guards that are not judged, whatever their bound: TTFT, TPOT, Errors, Preemptions,
    Throughput. A trial does not wait for their metrics either."""
    ttft_max_increase_percent: GuardPercent = 10
    """Accepted rise of time to first token, in percent."""
    tpot_max_increase_percent: GuardPercent = 10
    """Accepted rise of time per output token, in percent."""
    error_rate_max_increase_basis_points: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Accepted rise of the share of failed requests, in hundredths of a percentage point."""
    preemption_rate_max_increase_percent: GuardPercent = 50
    """Accepted rise of preemptions per request, in percent."""
    throughput_max_drop_percent: Annotated[int, Field(ge=0, le=100)] = 1
    """Accepted drop of requests served within the targets, in percent."""


class FallbackSpec(ApiModel):
    """Settings to return to when quality regresses; eviction is always switched off."""

    kv_cache_dtype: FallbackDType = FallbackDType.AUTO
    """Dtype of 16 bits to return to; `auto` is the model's own."""


class MemorySpec(ApiModel):
    """How long a rejected change is remembered."""

    reject_for_seconds: Annotated[int, Field(ge=0, le=31_536_000)] = 604_800
    """Time during which a rejected change is not tried again, in seconds; 0 forgets at once."""


class KVRollbackPolicySpec(ApiModel):
    """How a change is tried, judged and undone."""

    ab: ABSpec = Field(default_factory=ABSpec, json_schema_extra={"default": {}})
    """Exposure of the candidate."""
    quality: QualitySpec = Field(default_factory=QualitySpec, json_schema_extra={"default": {}})
    """Bounds on output quality."""
    guards: GuardsSpec = Field(default_factory=GuardsSpec, json_schema_extra={"default": {}})
    """Bounds on what a change may cost in service."""
    fallback: FallbackSpec = Field(default_factory=FallbackSpec, json_schema_extra={"default": {}})
    """Settings that the fleet returns to when quality regresses."""
    memory: MemorySpec = Field(default_factory=MemorySpec, json_schema_extra={"default": {}})
    """How long a rejected change is remembered."""


if TYPE_CHECKING:
    PolicyOverrides = ApiModel
else:
    PolicyOverrides = partial(KVRollbackPolicySpec, "PolicyOverrides")


class KVRollbackPolicyStatus(StatusModel):
    """Who uses the policy."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), map_by("type")] = ()
    """Accepted."""
    observed_generation: Generation | None = None
    """Generation of the spec that the status describes."""


class KVRollbackPolicy(ResourceModel):
    """A reusable rule for A/B tests and rollbacks."""

    spec: KVRollbackPolicySpec
    """What the user wants."""
    status: KVRollbackPolicyStatus = Field(default_factory=KVRollbackPolicyStatus)
    """What the operator observed."""
