"""What the tuner concluded, in a form that can be shown, stored and replayed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvserving_tuner.reasons import Action, DiagnosisKind, Reason

__all__ = [
    "Action",
    "Case",
    "Change",
    "CostClass",
    "Decision",
    "Diagnosis",
    "DiagnosisKind",
    "Forecast",
    "Knob",
    "PassedOver",
    "Reason",
    "Risk",
    "RungName",
    "Value",
]


class Knob(StrEnum):
    """What a change may move."""

    MAX_ACTIVE_SEQS = "MaxActiveSeqs"
    """Cap on sequences running at the same time in one engine rank."""
    MAX_SCHEDULED_TOKENS = "MaxScheduledTokens"
    """Cap on the tokens of one engine step."""
    KV_CACHE_DTYPE = "KVCacheDtype"
    """Format in which keys and values are stored."""
    EVICTION = "Eviction"
    """Which tokens leave the cache before their request ends."""
    PREFIX_CACHING = "PrefixCaching"
    """Whether prompts that begin alike share what is computed of them."""
    SCHEDULING = "Scheduling"
    """A start setting of the scheduler that has one right value, such as chunked prefill."""
    MAX_QUEUED_TOKENS = "MaxQueuedTokens"
    """Prompt tokens in the queue from which on requests are refused with a 503."""
    WATERMARK_PERCENT = "WatermarkPercent"
    """Share of the KV cache that admission leaves free, in percent."""
    MAX_NUM_SEQS = "MaxNumSeqs"
    """Sequences that an engine is built for; the cap may not be higher."""
    MAX_NUM_BATCHED_TOKENS = "MaxNumBatchedTokens"
    """Tokens of a step that an engine is built for."""
    KV_OFFLOAD = "KVOffload"
    """Memory of the host that keeps what the KV cache has no room for."""

    @property
    def runtime_field(self) -> str:
        """The knob's field in the engine's runtime API; KeyError where it has none."""
        return {
            Knob.MAX_ACTIVE_SEQS: "max_active_seqs",
            Knob.MAX_SCHEDULED_TOKENS: "max_scheduled_tokens",
            Knob.KV_CACHE_DTYPE: "kv_cache_dtype",
        }[self]


class CostClass(StrEnum):
    """What applying a change costs."""

    LIVE = "Live"
    """A call to each engine: no restart, no lost request."""
    RESTART = "Restart"
    """Each engine loads its model again and begins with a cold cache."""


class Risk(StrEnum):
    """What may go wrong with a change that does what it should."""

    REVERSIBLE = "Reversible"
    """Nothing that a step back does not undo at once: answers stay as they are."""
    LATENCY = "Latency"
    """Requests may wait longer; answers stay as they are."""
    REFUSALS = "Refusals"
    """Some requests are refused."""
    START = "Start"
    """The engine may not start, or may start with less room."""
    QUALITY = "Quality"
    """Answers change: it has to be shown that they do not get worse."""


class RungName(StrEnum):
    """The steps of the ladder, cheapest and safest first."""

    CONFIGURATION = "Configuration"
    """Start settings that are wrong whatever the load."""
    PREFIX_CACHING = "PrefixCaching"
    """Prompts that begin alike share what is computed of them."""
    ADMISSION = "Admission"
    """A bound on the queue, so that those who are let in are answered in time."""
    ACTIVE_CAP = "ActiveCap"
    """The caps on running sequences and on the tokens of a step."""
    WATERMARK = "Watermark"
    """A part of the cache that admission leaves to those who run."""
    EIGHT_BIT_CACHE = "EightBitCache"
    """Keys and values in 8 bits."""
    MIXED_CACHE = "MixedCache"
    """Keys in 8 bits and values in 4."""
    CAPACITY = "Capacity"
    """The sequences and tokens that an engine is built for."""
    OFFLOAD = "Offload"
    """The host's memory behind the KV cache."""
    FOUR_BIT_CACHE = "FourBitCache"
    """Keys and values in 4 bits."""
    FEWER_BITS = "FewerBits"
    """Keys or values in fewer than 4 bits."""
    EVICTION = "Eviction"
    """Tokens leave the cache before their request ends."""


Value = int | str
"""A setting; shares are in whole percent."""


@dataclass(frozen=True, slots=True)
class Change:
    """Move one knob on all engines; `from_value` is the highest value in effect before."""

    knob: Knob
    from_value: Value
    to_value: Value
    cost: CostClass = CostClass.LIVE


@dataclass(frozen=True, slots=True)
class Forecast:
    """Relative change of goodput that a change is expected to bring: 0.1 is a tenth more.

    The true value is expected below `low` with a probability of a fifth, and likewise above `high`.
    """

    gain: float
    low: float
    high: float
    basis: str

    def __str__(self) -> str:
        return f"{self.gain:+.0%} ({self.low:+.0%} to {self.high:+.0%}; {self.basis})"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A rung that was looked at and not taken, with the reason."""

    rung: RungName
    why: str


@dataclass(frozen=True, slots=True)
class Case:
    """What speaks for a change of the ladder and what it may cost.

    `forecast` is None in rule mode, and where nothing that was measured tells. `start_seconds` is
    how long engines last were away when they restarted (a live change: 0); None if never seen.
    """

    rung: RungName
    risk: Risk
    forecast: Forecast | None
    start_seconds: float | None


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
    case: Case | None = None
    """What speaks for `change`, where the ladder made it."""
    passed_over: tuple[PassedOver, ...] = ()
    """Rungs of the ladder that were looked at before, or all of them where nothing is due."""

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
            "case": None if self.case is None else _case(self.case),
            "passed_over": [
                {"rung": each.rung.value, "why": each.why} for each in self.passed_over
            ],
        }


def _case(case: Case) -> dict[str, object]:
    forecast = case.forecast
    return {
        "rung": case.rung.value,
        "risk": case.risk.value,
        "forecast": None
        if forecast is None
        else {
            "gain": round(forecast.gain, 4),
            "low": round(forecast.low, 4),
            "high": round(forecast.high, 4),
            "basis": forecast.basis,
        },
        "start_seconds": case.start_seconds,
    }
