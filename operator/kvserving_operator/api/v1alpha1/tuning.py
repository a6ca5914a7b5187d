"""`spec.slo` and `spec.tuning`: what the service promises and what the tuner may do for it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kvserving_kernels.formats import KVCacheDType
from kvserving_operator.api.base import (
    ApiModel,
    AsSet,
    Milliseconds,
    Seconds,
    Unique,
    map_by,
    unique_by,
)
from kvserving_operator.api.rules import Rule


class SLOSpec(ApiModel):
    """Latency targets of the service."""

    ttft_milliseconds: Milliseconds | None = None
    """Time to first token at the percentile, in milliseconds; unset means no target. Gives the
    engine's histogram an edge at this value; decisions do not depend on it yet."""
    tpot_milliseconds: Milliseconds | None = None
    """Time per output token after the first at the percentile, in milliseconds; unset means no
    target. The tuner raises the cap only while the percentile stays 15 % below it; a missed target
    alone lowers nothing."""
    percentile: Annotated[int, Field(ge=50, le=99)] = 95
    """Share of requests that must meet the targets, in percent; the tuner holds the target for
    time per output token against it."""


class TuningMode(StrEnum):
    """How far the tuner may go."""

    OFF = "Off"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class KnobName(StrEnum):
    """Engine settings that the tuner can move."""

    MAX_ACTIVE_SEQS = "MaxActiveSeqs"


class KnobSpec(ApiModel):
    """Bounds of one setting."""

    rules = (
        Rule(
            cel="!has(self.minimum) || !has(self.maximum) || self.minimum <= self.maximum",
            holds=lambda knob: (
                knob.minimum is None or knob.maximum is None or knob.minimum <= knob.maximum
            ),
            message="must be at most maximum ({self.maximum}), got {self.minimum}",
            field="minimum",
        ),
    )

    name: KnobName
    """Setting that the tuner may move."""
    minimum: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Lowest value the tuner may choose; the default is the engine's own bound."""
    maximum: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Highest value the tuner may choose; the default is the engine's own bound."""


class CooldownSpec(ApiModel):
    """How long a change settles before the next one of its kind."""

    live_seconds: Seconds = 60
    """Pause after a live change, in seconds; lowering the cap in a preemption storm does not
    wait."""
    dtype_seconds: Seconds = 600
    """Pause after a change of the KV dtype, in seconds."""
    restart_seconds: Seconds = 1800
    """Pause after a change that restarts engines, in seconds."""


class TuningSpec(ApiModel):
    """What the tuner may change."""

    mode: TuningMode = TuningMode.RECOMMEND
    """Off only observes, Recommend writes `status.recommendation`, Auto applies changes."""
    knobs: Annotated[
        tuple[KnobSpec, ...],
        Field(min_length=1, max_length=16),
        map_by("name"),
        unique_by("name"),
    ] = (KnobSpec(name=KnobName.MAX_ACTIVE_SEQS),)
    """Settings the tuner may move, with their bounds."""
    allowed_dtypes: (
        Annotated[
            tuple[KVCacheDType, ...],
            Field(min_length=1, max_length=16),
            AsSet,
            Unique,
        ]
        | None
    ) = None
    """KV dtypes that the tuner may go to where the KV cache binds: by a trial in mode Auto under a
    policy, else as a recommendation; the default is the dtype of the spec alone."""
    cooldown: CooldownSpec = Field(default_factory=CooldownSpec, json_schema_extra={"default": {}})
    """Pauses between changes."""
