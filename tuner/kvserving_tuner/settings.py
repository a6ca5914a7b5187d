"""All that may be set about tuning, and every threshold, with the reason for its default."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvserving_tuner.decision import Knob
from kvserving_tuner.rules import Ability, Guardrails, LadderRules, RegimeRules


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Mode(StrEnum):
    """How far the tuner may go."""

    OFF = "Off"
    """Diagnose only."""
    RECOMMEND = "Recommend"
    """Say what it would change; change nothing."""
    AUTO = "Auto"
    """Change live settings within their bounds."""


class Bounds(_Frozen):
    """What a knob may be set to, both ends included."""

    minimum: int = Field(default=1, ge=1)
    maximum: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.maximum is not None and self.maximum < self.minimum:
            msg = f"maximum: expected at least minimum ({self.minimum}), got {self.maximum}"
            raise ValueError(msg)
        return self


class Slo(_Frozen):
    """Latency targets at one percentile; None: no target."""

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)
    percentile: float = Field(default=95, gt=0, le=100)

    @property
    def missed_share(self) -> float:
        """Share of requests that may miss a target."""
        return (100 - self.percentile) / 100


class Cooldowns(_Frozen):
    """Quiet time after a change, by what it costs; in a storm lowering the cap does not wait."""

    live_seconds: float = Field(default=60, ge=0)
    """A live cap acts at the next engine step; one full window afterwards shows its effect."""
    dtype_seconds: float = Field(default=600, ge=0)
    """A KV dtype switch empties the cache, so hit rates need minutes to come back."""
    restart_seconds: float = Field(default=1800, ge=0)
    """Model load, compilation and a cold cache cost minutes of capacity."""


class Windows(_Frozen):
    """How long the tuner looks back."""

    storm_seconds: float = Field(default=20, gt=0)
    """A preemption storm halves throughput within seconds, so it has its own short window."""
    full_seconds: float = Field(default=60, gt=0)
    """Long enough for rates of slow engines, short enough to follow a shift of load."""
    minimum_scrapes: int = Field(default=3, ge=2)
    """Two samples make a rate; the third shows that it was not one outlier."""
    minimum_coverage: float = Field(default=0.7, gt=0, le=1)
    """Share of the full window its samples must span before it counts as full."""
    stale_seconds: float = Field(default=30, gt=0)
    """Age from which a sample, or gauges that stand still while requests are said to run, count as
    stale. Engines freeze their gauges after mass aborts (vllm#22545, vllm#29928)."""
    clock_skew_seconds: float = Field(default=5, ge=0)
    """How far ahead of our clock a sample's time may lie."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.full_seconds < self.storm_seconds:
            msg = (
                f"full_seconds: expected at least storm_seconds ({self.storm_seconds:g}), "
                f"got {self.full_seconds:g}"
            )
            raise ValueError(msg)
        return self


class Thresholds(_Frozen):
    """Where one diagnosis ends and the next begins."""

    idle_tokens_per_second: float = Field(default=0.5, ge=0)
    """Readiness probes produce a token now and then; that is not traffic."""
    cap_reached_share: float = Field(default=0.98, gt=0, le=1)
    """Running sequences over the cap from which the cap is the limit."""
    cap_free_kv_usage: float = Field(default=0.85, gt=0, le=1)
    """KV use below which the cap, not the cache, holds sequences back. Latency bends upwards
    between 0.8 and 0.9 (vllm-ascend#5859: TPOT 107, 114, 440 ms at 79, 92, 99 % use)."""
    pressure_kv_usage: float = Field(default=0.90, gt=0, le=1)
    """KV use (p95 of the window) from which waiting requests wait for the cache."""
    storm_kv_usage: float = Field(default=0.90, gt=0, le=1)
    """A storm needs a full cache; preemptions without one have another cause."""
    storm_minimum_preemptions: float = Field(default=3, ge=1)
    """In the short window; one or two preemptions happen in any well-used cache."""
    storm_minimum_sustained: float = Field(default=5, ge=1)
    """In the full window: a slow engine's storm may show fewer than that in a short one."""
    storm_preempted_share: float = Field(default=0.05, gt=0)
    """Preemptions per finished request; above 5 % recomputation shows in throughput."""
    storm_minimum_finished: float = Field(default=20, ge=1)
    """Below this many finished requests that share is noise, and preemptions are judged by running
    requests."""
    storm_preemptions_per_running_second: float = Field(default=0.01, gt=0)
    """One preemption per running request in 100 s; equals the 5 % share where a request runs for 5
    s, and also judges slow engines on which nothing finishes in a short window."""
    storm_slowdown: float = Field(default=0.7, gt=0, le=1)
    """Generation per running request, second half over first half of the window, that confirms a
    storm whose preemptions the engine's counter has not shown yet (it is delivered late)."""
    storm_echo_seconds: float = Field(default=60, ge=0)
    """How long after the cap was lowered the counter still reports the old storm's preemptions."""
    compute_kv_usage: float = Field(default=0.80, gt=0, le=1)
    """KV use below which requests that wait without a cap wait for the device (C.3)."""
    budget_reached_share: float = Field(default=0.9, gt=0, le=1)
    """Mean tokens of a step over its budget from which the budget is the limit (C.3)."""
    thrash_hit_share: float = Field(default=0.7, gt=0, lt=1)
    """Prefix hit ratio over the load's usual one from which reuse counts as lost (C.3: a fall by
    30 %)."""
    tpot_slack_share: float = Field(default=0.15, ge=0, lt=1)
    """Room under the TPOT target that must be left before more sequences may run: each of them
    makes steps longer."""


class CapRules(_Frozen):
    """How the cap on active sequences moves."""

    raise_factor: float = Field(default=1.25, gt=1)
    """Largest step upwards; at least one sequence. Larger steps overshoot the cliff between two
    looks."""
    storm_factor: float = Field(default=0.8, gt=0, lt=1)
    """Largest share of the sequences running in a storm that may go on running."""
    predicted_kv_usage: float = Field(default=0.90, gt=0, le=1)
    """A raise is allowed only if KV use predicted for after it stays below this."""
    confirmations: int = Field(default=3, ge=1)
    """Consecutive observations that must agree before a raise."""
    fit_risk: float = Field(default=0.05, gt=0, lt=0.5)
    """Accepted probability that sequences outgrow the cache, when computing how many fit."""
    fit_reserve: float = Field(default=0.05, ge=0, lt=1)
    """Share of the cache kept free in that computation."""
    fit_minimum_finished: float = Field(default=10, ge=1)
    """Finished requests needed to trust their mean lengths."""
    ceiling_margin: float = Field(default=0.1, ge=0, lt=1)
    """Distance kept from a cap at which a storm happened, as a share of it, while it is
    remembered."""
    raise_spacing_seconds: float = Field(default=300, ge=0)
    """Time between raises while a storm is remembered as recent: at most two in ten quiet minutes.
    The first raise after a storm waits for the cool-down only."""
    recent_storm_seconds: float = Field(default=3600, gt=0)
    """How long a storm counts as recent; without one, raises follow each other at the cool-down."""
    backoff_seconds: float = Field(default=600, gt=0)
    """How long a storm's cap is remembered, and how long raises pause after a raise that led to a
    storm."""
    backoff_maximum_seconds: float = Field(default=21600, gt=0)
    """The back-off doubles with every storm that follows a raise, up to this."""
    lighter_load_share: float = Field(default=0.3, gt=0, lt=1)
    """How much shorter requests must be than when the storm happened for its memory to be rescaled
    and raises to go on."""


class TuningSettings(_Frozen):
    """Settings of one serving's tuner."""

    mode: Mode = Mode.OFF
    max_active_seqs: Bounds | None = Bounds()
    """Bounds of the live cap on running sequences; None: the tuner may not move it."""
    max_scheduled_tokens: Bounds = Bounds()
    """Bounds of the live cap on the tokens of a step, where `abilities` has it."""
    abilities: Mapping[Knob, Ability] = {}
    """What can be done about each other knob; one that is missing is not allowed."""
    allowed_dtypes: tuple[str, ...] = ()
    """KV cache formats that the tuner may go to."""
    slo: Slo = Slo()
    cooldowns: Cooldowns = Cooldowns()
    windows: Windows = Windows()
    thresholds: Thresholds = Thresholds()
    cap: CapRules = CapRules()
    ladder: LadderRules = LadderRules()
    guardrails: Guardrails = Guardrails()
    regimes: RegimeRules = RegimeRules()

    def ability(self, knob: Knob) -> Ability | None:
        """What can be done about a knob; None where it may not be touched."""
        if knob is Knob.MAX_ACTIVE_SEQS:
            return None if self.max_active_seqs is None else Ability.CHANGE
        return self.abilities.get(knob)

    def tpot_room_ms(self) -> float | None:
        """Time per output token that must not be exceeded for more sequences to be allowed."""
        if self.slo.tpot_ms is None:
            return None
        return round(self.slo.tpot_ms * (1 - self.thresholds.tpot_slack_share), 3)

    def tpot_edges_ms(self) -> tuple[float, ...]:
        """Bucket edges an engine should have, so that comparisons with them are certain."""
        room = self.tpot_room_ms()
        return () if room is None or self.slo.tpot_ms is None else (room, self.slo.tpot_ms)
