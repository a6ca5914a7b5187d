"""One turn of the tuner: what is known goes in, a decision and the new memory come out.

Pure: the same inputs give the same decision, in the cluster, on a bare engine, and on a recorded
trace.
"""

import hashlib
from collections.abc import Mapping, Sequence

from kvserving_tuner import proposal as rules
from kvserving_tuner.decision import (
    Action,
    Decision,
    Diagnosis,
    DiagnosisKind,
    Reason,
)
from kvserving_tuner.diagnosis import diagnose_engine
from kvserving_tuner.memory import (
    adopt,
    count_agreement,
    meet_kv_cache,
    remember_change,
    remember_recommendation,
    same_recommendation,
    withdraw,
)
from kvserving_tuner.observation import Observation, ProblemReason
from kvserving_tuner.proposal import Knobs, Proposal
from kvserving_tuner.readings import known
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.state import TunerState

__all__ = ["TunerState", "decide"]

# A storm decides at once; of the others, the one that most forbids a raise speaks for all engines.
_GRAVITY = (
    DiagnosisKind.PREEMPTION_STORM,
    DiagnosisKind.UNKNOWN,
    DiagnosisKind.KV_PRESSURE,
    DiagnosisKind.SEQUENCE_CAP,
    DiagnosisKind.HEALTHY,
    DiagnosisKind.IDLE,
)


def decide(
    settings: TuningSettings,
    observation: Observation,
    runtime: Sequence[RuntimeState],
    state: TunerState,
    now: float,
) -> tuple[Decision, TunerState]:
    """Diagnose `observation` and say what is to be done at `now` (seconds since the epoch)."""
    knobs = rules.read_knobs(settings, observation, runtime)
    identity = _identity(settings, observation, runtime, state, now)
    diagnosis = diagnose(settings, observation, runtime, state.last_storm_at)
    state = count_agreement(state, diagnosis.kind, _newest_sample(observation))
    state = meet_kv_cache(state, runtime, now)
    if isinstance(knobs, Knobs):
        state = adopt(state, knobs.common, now)
    proposal = _propose(settings, observation, diagnosis, knobs, state, now)
    action, proposal, state = _act(settings, diagnosis, proposal, state, identity, now)
    decision = Decision(
        id=identity,
        at=now,
        diagnosis=diagnosis,
        action=action,
        change=proposal.change if action is not Action.HOLD else None,
        reason=proposal.reason,
        message=proposal.message,
        numbers={
            **diagnosis.evidence,
            **_numbers_of(knobs),
            **proposal.numbers,
            "mode": settings.mode.value,
        },
    )
    return decision, state


def diagnose(
    settings: TuningSettings,
    observation: Observation,
    runtime: Sequence[RuntimeState],
    lowered_at: float | None = None,
) -> Diagnosis:
    """One diagnosis for all engines: the gravest, except that missing data outweighs calm ones.

    `lowered_at` is when the cap was last lowered to end a storm.
    """
    blocking = observation.blocking()
    blocked = {problem.target for problem in blocking}
    caps = {each.target: each.effective.max_active_seqs for each in runtime}
    found = [
        diagnose_engine(
            engine,
            caps.get(engine.target) or _cap_by_metric(known(engine.max_active_seqs)),
            settings.thresholds,
            lowered_at,
        )
        for engine in observation.engines
        # An engine whose numbers are in doubt takes no part; one that is well read may still storm.
        if engine.target not in blocked and None not in blocked
    ]
    for storm in found:
        if storm.kind is DiagnosisKind.PREEMPTION_STORM:
            return storm
    if blocking:
        first = blocking[0]
        where = f"{first.target}: " if first.target else ""
        return Diagnosis(
            DiagnosisKind.UNKNOWN,
            first.target,
            where + first.message,
            {"problems": float(len(blocking))},
            _hold_reason(first.reason),
        )
    if not found:
        return Diagnosis(
            DiagnosisKind.UNKNOWN, None, "there is no engine to observe", {}, Reason.NO_ENGINES
        )
    return min(found, key=lambda each: _GRAVITY.index(each.kind))


def _cap_by_metric(value: float | None) -> int | None:
    return None if value is None else int(value)


def _hold_reason(reason: ProblemReason) -> Reason:
    return Reason(reason.value)


def _propose(
    settings: TuningSettings,
    observation: Observation,
    diagnosis: Diagnosis,
    knobs: Knobs | Proposal,
    state: TunerState,
    now: float,
) -> Proposal:
    if settings.mode is Mode.OFF:
        return Proposal(None, Reason.MODE_OFF, f"tuning is off; {diagnosis.message}")
    young = diagnosis.reason is Reason.WARMING_UP
    if young and isinstance(knobs, Knobs) and knobs.common is None:
        # That caps differ is read from the engines themselves; no window is needed to see it.
        return rules.on_calm(settings, observation, diagnosis, knobs, state, now)
    if diagnosis.kind is DiagnosisKind.UNKNOWN:
        return Proposal(None, diagnosis.reason or Reason.CONTRADICTION, diagnosis.message)
    if isinstance(knobs, Proposal):
        return knobs
    if diagnosis.kind is DiagnosisKind.PREEMPTION_STORM:
        engine = next(e for e in observation.engines if e.target == diagnosis.target)
        return rules.on_storm(settings, engine, diagnosis, knobs, state)
    return rules.on_calm(settings, observation, diagnosis, knobs, state, now)


def _act(
    settings: TuningSettings,
    diagnosis: Diagnosis,
    proposal: Proposal,
    state: TunerState,
    identity: str,
    now: float,
) -> tuple[Action, Proposal, TunerState]:
    """Turn a proposal into an action, as far as the mode allows."""
    if settings.mode is Mode.AUTO:
        state = state.model_copy(update={"recommendation": None})
        if proposal.change is None:
            return Action.HOLD, proposal, state
        return Action.CHANGE, proposal, remember_change(settings.cap, state, proposal, now)
    if settings.mode is Mode.OFF:
        return Action.HOLD, proposal, state.model_copy(update={"recommendation": None})
    if proposal.change is None:
        return Action.HOLD, proposal, withdraw(settings.cap, state, diagnosis.kind)
    if same_recommendation(state.recommendation, proposal.change):
        standing = Proposal(
            None,
            Reason.RECOMMENDATION_STANDS,
            f"recommended before and unchanged: {proposal.message}",
            proposal.numbers,
        )
        return Action.HOLD, standing, state
    return Action.RECOMMEND, proposal, remember_recommendation(state, proposal, identity, now)


def _newest_sample(observation: Observation) -> float | None:
    times = [engine.at for engine in observation.engines if engine.at is not None]
    return max(times, default=None)


def _numbers_of(knobs: Knobs | Proposal) -> Mapping[str, float | str]:
    if isinstance(knobs, Proposal):
        return {}
    cap: float | str = (
        f"{knobs.lowest} to {knobs.highest}" if knobs.common is None else knobs.common
    )
    return {"cap": cap, "cap_minimum": knobs.minimum, "cap_maximum": knobs.maximum}


def _identity(
    settings: TuningSettings,
    observation: Observation,
    runtime: Sequence[RuntimeState],
    state: TunerState,
    now: float,
) -> str:
    """An id that the same inputs give again, so that a repeated turn is seen to be the same."""
    inputs = (
        settings.model_dump_json(),
        repr(observation),
        *(each.model_dump_json() for each in runtime),
        state.to_json(),
        repr(now),
    )
    return hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:16]
