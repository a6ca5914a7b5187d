"""What the tuner concluded, in a form that can be shown, stored and replayed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class DiagnosisKind(StrEnum):
    """What limits the engines."""

    IDLE = "Idle"
    """There are no requests."""
    HEALTHY = "Healthy"
    """Requests are served; neither the cap nor the cache holds them back."""
    SEQUENCE_CAP = "SequenceCap"
    """Requests wait because the cap on running sequences is reached while the KV cache has room."""
    KV_PRESSURE = "KVPressure"
    """Requests wait because the KV cache is nearly full."""
    PREEMPTION_STORM = "PreemptionStorm"
    """More sequences run than the KV cache holds: they evict each other and are computed again and
    again."""
    UNKNOWN = "Unknown"
    """Data is missing, stale, too young, or contradicts itself."""


class Knob(StrEnum):
    """What a change may move."""

    MAX_ACTIVE_SEQS = "MaxActiveSeqs"
    """Cap on sequences running at the same time in one engine rank."""

    @property
    def runtime_field(self) -> str:
        """The knob's field in the engine's runtime API."""
        return {Knob.MAX_ACTIVE_SEQS: "max_active_seqs"}[self]


class CostClass(StrEnum):
    """What applying a change costs."""

    LIVE = "Live"
    """A call to each engine: no restart, no lost request."""


@dataclass(frozen=True, slots=True)
class Change:
    """Move one knob on all engines; `from_value` is the highest value in effect before."""

    knob: Knob
    from_value: int
    to_value: int
    cost: CostClass = CostClass.LIVE


class Action(StrEnum):
    """What is to be done now."""

    HOLD = "Hold"
    """Nothing changes."""
    CHANGE = "Change"
    """One knob is moved on every engine."""
    RECOMMEND = "Recommend"
    """A change is written to the status and not made."""


class Reason(StrEnum):
    """Why; one word that a condition or an Event can carry."""

    PREEMPTION_STORM = "PreemptionStorm"
    """The cap is lowered because sequences evict each other."""
    SEQUENCES_WAIT_KV_FREE = "SequencesWaitKVFree"
    """The cap is raised because requests wait and the KV cache has room for more."""
    CAPS_DIFFER = "CapsDiffer"
    """Engines of one serving have different caps and are brought together."""
    OUTSIDE_BOUNDS = "OutsideBounds"
    """The cap in effect lies outside the bounds set for it and is brought inside."""
    IDLE = "Idle"
    """There are no requests."""
    HEALTHY = "Healthy"
    """Neither the cap nor the cache holds requests back."""
    KV_PRESSURE = "KVPressure"
    """More sequences would not fit; fewer are not needed, as nothing is preempted."""
    MODE_OFF = "ModeOff"
    """Tuning is off; the diagnosis is all there is."""
    METRICS_MISSING = "MetricsMissing"
    """An engine's metrics cannot be read."""
    METRICS_STALE = "MetricsStale"
    """The newest numbers are too old to decide on."""
    METRIC_NAME_UNKNOWN = "MetricNameUnknown"
    """An engine publishes none of the known names of a metric."""
    PROMETHEUS_ERROR = "PrometheusError"
    """Prometheus did not answer or refused the query."""
    WARMING_UP = "WarmingUp"
    """Too few samples since the engine started or its settings changed."""
    CONTRADICTION = "Contradiction"
    """The metrics cannot all be true."""
    NO_ENGINES = "NoEngines"
    """There is no engine to observe."""
    NO_RUNTIME_API = "NoRuntimeAPI"
    """No engine offers the knob live."""
    RUNTIME_UNREADABLE = "RuntimeUnreadable"
    """Some engine's settings could not be read back."""
    KNOB_NOT_ALLOWED = "KnobNotAllowed"
    """The spec does not list the knob among those that may be moved."""
    BOUNDS_CONFLICT = "BoundsConflict"
    """No value lies within both the bounds set and what the engines allow."""
    DRAINING = "Draining"
    """More sequences run than the cap allows: a lowered cap has yet to take effect."""
    CONFIRMING = "Confirming"
    """A raise is due once the next observations agree."""
    COOLDOWN = "Cooldown"
    """A raise waits until a recent change or storm has settled."""
    KV_WOULD_FILL = "KVWouldFill"
    """A raise would fill the KV cache."""
    CEILING_REMEMBERED = "CeilingRemembered"
    """A raise would come too near a cap at which a storm happened."""
    NO_TPOT_SLACK = "NoTPOTSlack"
    """A raise would use up what is left under the target for time per output token."""
    TPOT_UNKNOWN = "TPOTUnknown"
    """There is a target for time per output token, but no certain measurement."""
    AT_MAXIMUM = "AtMaximum"
    """A raise is wanted, but the cap is at its highest allowed value."""
    AT_MINIMUM = "AtMinimum"
    """The cap should be lower still, but is at its lowest allowed value."""
    RECOMMENDATION_STANDS = "RecommendationStands"
    """What is recommended has not changed."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One conclusion with the numbers behind it; `target` is the engine it rests on, None: all."""

    kind: DiagnosisKind
    target: str | None
    message: str
    evidence: Mapping[str, float | str]
    reason: Reason | None = None
    """Why nothing follows from it, where that is already certain."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One turn of the loop: what was found, what is to be done, and why; `at` in epoch seconds."""

    id: str
    at: float
    diagnosis: Diagnosis
    action: Action
    change: Change | None
    reason: Reason
    message: str
    numbers: Mapping[str, float | str]

    def to_dict(self) -> dict[str, object]:
        """The decision as plain JSON values."""
        change = self.change
        return {
            "id": self.id,
            "at": self.at,
            "diagnosis": {
                "kind": self.diagnosis.kind.value,
                "target": self.diagnosis.target,
                "message": self.diagnosis.message,
                "evidence": dict(self.diagnosis.evidence),
            },
            "action": self.action.value,
            "change": None
            if change is None
            else {
                "knob": change.knob.value,
                "from": change.from_value,
                "to": change.to_value,
                "cost": change.cost.value,
            },
            "reason": self.reason.value,
            "message": self.message,
            "numbers": dict(self.numbers),
        }
