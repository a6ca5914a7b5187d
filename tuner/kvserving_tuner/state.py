"""What the tuner remembers between turns: plain JSON, and enough to go on after a restart."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvserving_tuner.decision import CostClass, DiagnosisKind, Value
from kvserving_tuner.errors import SettingsError
from kvserving_tuner.remembered import Account, Due, Loads, Sample, Tried, Watch


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Ceiling(_Frozen):
    """A cap at which a storm happened, remembered until `until`."""

    sequences: float
    """Sequences that ran per rank when the storm was seen, or the cap if that was lower."""
    tokens_per_request: float | None = None
    """Mean length of finished requests then: a ceiling is a fact about a load, not an engine."""
    until: float


class Recommendation(_Frozen):
    """A change that mode Recommend would make, standing since `at`."""

    id: str
    at: float
    knob: str
    from_value: Value
    to_value: Value
    reason: str
    message: str
    cost: CostClass = CostClass.LIVE


class TunerState(_Frozen):
    """Memory of one serving's tuner; times in seconds since the epoch."""

    version: int = 1
    cap: int | None = None
    """The cap last decided or adopted."""
    kv_cache: str | None = None
    """Format and eviction policy under which the rest was learned."""
    last_change_at: float | None = None
    last_raise_at: float | None = None
    last_storm_at: float | None = None
    storms: int = Field(default=0, ge=0)
    """Storms under this load and format, each a while after the one before."""
    ceiling: Ceiling | None = None
    backoff_seconds: float | None = None
    """Current pause between raises after a raise led to a storm; None: none did."""
    raises_paused_until: float | None = None
    agreeing: DiagnosisKind | None = None
    """Diagnosis of the last observations in a row."""
    agreeing_count: int = Field(default=0, ge=0)
    agreeing_at: float | None = None
    """Time of the newest sample counted, so that one observation is not counted twice."""
    recommendation: Recommendation | None = None
    start_kv_cache_dtype: str | None = None
    """The KV cache's format when the tuner first looked, or that a person set since: the way back.
    """
    set_kv_cache_dtype: str | None = None
    """The format that the tuner set last: any other that appears is somebody's wish."""
    due: Due | None = None
    """The rung of the ladder that is due, until it has been so for long enough."""
    asked: Tried | None = None
    """A change that is to be tried, or is being tried, by somebody who reports the verdict."""
    watch: Watch | None = None
    """A change whose effect is being watched."""
    tried: tuple[Tried, ...] = ()
    """Changes and how they turned out, the latest last."""
    samples: tuple[Sample, ...] = ()
    """Full windows under the settings in force, the latest last."""
    last_step_at: float | None = None
    """When the ladder last changed something, or took it back."""
    rollbacks: int = Field(default=0, ge=0)
    """Changes in a row that were taken back: each doubles the cool-down."""
    changed_at: tuple[float, ...] = ()
    """Calm changes of the last 24 hours."""
    switched_at: tuple[float, ...] = ()
    """Those of them that emptied the cache or restarted engines."""
    restoring: bool = False
    """Whether the cap of a load that was seen before is to be put back."""
    account: Account = Account()
    loads: Loads = Loads()

    def to_json(self) -> str:
        """The state as one line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read back what `to_json` wrote; fields of later versions are dropped."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            msg = (
                f"tuner state: expected the JSON of a TunerState, got {text[:80]!r} "
                f"({error.error_count()} errors)"
            )
            raise SettingsError(msg) from error
