"""From a KVRollbackPolicy to a trial's plan, and from a KVTrial to the settings that it tries."""

from collections.abc import Mapping

from kvserving_operator.api.v1alpha1 import (
    ChangeSpec,
    KVRollbackPolicySpec,
    RequestedBy,
    RequiredGain,
)
from kvserving_operator.api.v1alpha1.policy import Approval, Screening, SingleReplica
from kvserving_operator.live import NO_EVICTION, KVSettings, runtime_eviction
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.settings import Slo
from kvserving_tuner.trials.plan import Gain, Guard, OnStall, Plan

SIXTEEN_BITS = ("auto", "bfloat16", "float16")
UNTRIED_FIELDS = ("max_active_seqs", "engine_image", "model_revision", "start_up")
"""Changes that no probe can judge yet, or that need other pods."""


def gain_of(requested_by: RequestedBy, asked: RequiredGain | None) -> Gain | None:
    """What a change has to gain: something, where only the tuner wants it."""
    if asked is not None:
        return Gain(asked.value)
    return Gain.FASTER if requested_by is RequestedBy.TUNER else None


def plan_of(
    policy: KVRollbackPolicySpec,
    candidate: KVSettings,
    floors: Mapping[Probe, float],
    gain: Gain | None,
    slo: Slo,
) -> Plan:
    """Steps, clocks and bounds of a trial of these settings under a policy."""
    guards, quality = policy.guards, policy.quality
    named = quality.probes
    # Eviction alone leaves likelihoods as they are.
    likelihood = Probe.LIKELIHOOD in named and (
        candidate.kv_cache_dtype not in SIXTEEN_BITS or candidate.eviction == NO_EVICTION
    )
    percents = {
        Guard.TTFT: guards.ttft_max_increase_percent,
        Guard.TPOT: guards.tpot_max_increase_percent,
        Guard.ERRORS: guards.error_rate_max_increase_basis_points / 100,
        Guard.PREEMPTIONS: guards.preemption_rate_max_increase_percent,
        Guard.THROUGHPUT: guards.throughput_max_drop_percent,
    }
    return Plan(
        steps=policy.ab.steps,
        min_requests=policy.ab.min_requests,
        min_seconds=policy.ab.min_duration_seconds,
        stall_seconds=policy.ab.stall_timeout_seconds,
        on_stall=OnStall(policy.ab.on_stall.value),
        manual=policy.ab.approval is Approval.MANUAL,
        single_replica=policy.ab.single_replica is SingleReplica.SWITCH_IN_PLACE,
        likelihood=likelihood,
        screened=likelihood and quality.screening is Screening.ENABLED,
        tasks=tuple(
            probe
            for probe in Probe
            if probe is not Probe.LIKELIHOOD
            # A drop of everything is no bound.
            and (probe in floors or (probe in named and quality.max_drop_percent < 100))
        ),
        floors=dict(floors),
        max_drop_percent=quality.max_drop_percent,
        false_rollback=quality.false_rollback_percent / 100,
        min_samples=quality.min_samples,
        max_samples=quality.max_samples,
        gain=gain,
        slo=slo,
        # A drop or a failure of everything is no bound.
        guards={
            guard: percent
            for guard, percent in percents.items()
            if guard not in guards.disabled
            and not (guard in (Guard.THROUGHPUT, Guard.ERRORS) and percent >= 100)
        },
    )


def fallback_of(policy: KVRollbackPolicySpec) -> KVSettings:
    """Settings that the fleet returns to when quality falls."""
    return KVSettings(kv_cache_dtype=policy.fallback.kv_cache_dtype.value)


def candidate_of(change: ChangeSpec, stable: KVSettings) -> KVSettings:
    """Settings in force with what a change names of them."""
    update: dict[str, object] = {}
    if change.kv_cache_dtype is not None:
        update["kv_cache_dtype"] = change.kv_cache_dtype.value
    if change.eviction is not None:
        update["eviction"] = runtime_eviction(change.eviction)
    return stable.model_copy(update=update)


def untried(change: ChangeSpec) -> str:
    """Field of a change that trials cannot judge; empty where they can."""
    return next((name for name in UNTRIED_FIELDS if getattr(change, name) is not None), "")


def is_safe(settings: KVSettings) -> bool:
    """Whether settings keep every token in 16 bits: the way back, which nothing may hold up."""
    return settings.kv_cache_dtype in SIXTEEN_BITS and settings.eviction == NO_EVICTION


def sixteen_bits(wanted: KVSettings) -> KVSettings:
    """What engines run before these settings have proven themselves."""
    if wanted.kv_cache_dtype in SIXTEEN_BITS:
        return KVSettings(kv_cache_dtype=wanted.kv_cache_dtype)
    return KVSettings()


def needs_trial(before: KVSettings, after: KVSettings) -> bool:
    """Whether a change has to prove itself."""
    return before != after and not is_safe(after)
