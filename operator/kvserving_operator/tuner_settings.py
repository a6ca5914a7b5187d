"""Settings of the tuner from a spec; pure."""

from kvserving_operator.api.v1alpha1 import KnobName, KVServingSpec
from kvserving_operator.profiles import allowed_dtypes, may_recommend_eviction
from kvserving_tuner.decision import Knob
from kvserving_tuner.rules import Ability
from kvserving_tuner.settings import Bounds, Cooldowns, Mode, Slo, TuningSettings


def slo_of(spec: KVServingSpec) -> Slo:
    """Targets of latency that a spec states."""
    return Slo(
        ttft_ms=spec.slo.ttft_milliseconds,
        tpot_ms=spec.slo.tpot_milliseconds,
        percentile=spec.slo.percentile,
    )


def tuning_settings(spec: KVServingSpec) -> TuningSettings:
    """Settings of the tuner from a spec."""
    knob = {k.name: k for k in spec.tuning.knobs}.get(KnobName.MAX_ACTIVE_SEQS)
    bounds = None
    if knob is not None:
        bounds = Bounds(minimum=knob.minimum or 1, maximum=knob.maximum)
    # Nothing but a trial says what a format costs, and nothing but a policy how to run one.
    able = Ability.TRIAL if spec.rollback_policy_ref else Ability.RECOMMEND
    formats = tuple(dtype.value for dtype in allowed_dtypes(spec))
    abilities = {Knob.KV_CACHE_DTYPE: able} if formats else {}
    if may_recommend_eviction(spec):
        abilities[Knob.EVICTION] = Ability.RECOMMEND
    return TuningSettings(
        mode=Mode(spec.tuning.mode.value),
        max_active_seqs=bounds,
        abilities=abilities,
        allowed_dtypes=formats,
        slo=slo_of(spec),
        cooldowns=Cooldowns(
            live_seconds=spec.tuning.cooldown.live_seconds,
            dtype_seconds=spec.tuning.cooldown.dtype_seconds,
            restart_seconds=spec.tuning.cooldown.restart_seconds,
        ),
    )
