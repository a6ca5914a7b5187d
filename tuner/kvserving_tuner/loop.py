"""One turn of the tuner: what is known goes in, a decision and the new memory come out.

Pure: the same inputs give the same decision, in the cluster, on a bare engine, and on a recorded
trace.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvserving_tuner import proposal as rules
from kvserving_tuner.committing import remember_request, remember_step
from kvserving_tuner.decision import (
    Action,
    Decision,
    Diagnosis,
    DiagnosisKind,
    Knob,
    Reason,
)
from kvserving_tuner.diagnosis import Usual, diagnose_engine
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.learning import learn
from kvserving_tuner.memory import (
    adopt,
    count_agreement,
    meet_kv_cache,
    remember_recommendation,
    same_recommendation,
    withdraw,
)
from kvserving_tuner.observation import Observation, ProblemReason
from kvserving_tuner.proposal import Knobs, Proposal
from kvserving_tuner.readings import Known, known
from kvserving_tuner.regimes.loads import current
from kvserving_tuner.rules import Ability
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.settings import Mode, TuningSettings
from kvserving_tuner.state import TunerState
from kvserving_tuner.stepping import take_step

__all__ = ["TunerState", "decide"]

# A storm decides at once; of the others, the one that most forbids a raise speaks for all engines.
_GRAVITY = (
    DiagnosisKind.PREEMPTION_STORM,
    DiagnosisKind.UNKNOWN,
    DiagnosisKind.KV_PRESSURE,
    DiagnosisKind.PREFIX_THRASH,
    DiagnosisKind.SEQUENCE_CAP,
    DiagnosisKind.TOKEN_BUDGET,
    DiagnosisKind.COMPUTE_BOUND,
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
    identity = _identity(settings, observation, runtime, state, now)
    observation = with_capacity(observation, runtime)
    knobs = rules.read_knobs(settings, observation, runtime)
    here = current(state.loads)
    usual_hits = here.load.hit_ratio if here is not None else None
    diagnosis = diagnose(settings, observation, runtime, state.last_storm_at, usual_hits)
    state = count_agreement(state, diagnosis.kind, _newest_sample(observation))
    state = meet_kv_cache(state, runtime, now)
    if isinstance(knobs, Knobs):
        state = adopt(state, knobs.common, now)
    proposal = _propose(settings, observation, diagnosis, knobs, state, now)
    if settings.mode is not Mode.OFF:
        state = learn(settings, observation, runtime, diagnosis, state, now)
        situation = Situation(
            settings, observation.engines, tuple(runtime), diagnosis,
            knobs.common if isinstance(knobs, Knobs) else None,
            proposal.reason, proposal.message, state, now,
        )  # fmt: skip
        proposal, state = take_step(situation, knobs, proposal)
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
            **({"load": state.loads.current} if state.loads.current else {}),
        },
        case=proposal.case if action is not Action.HOLD else None,
        passed_over=proposal.passed_over,
    )
    return decision, state


def diagnose(
    settings: TuningSettings,
    observation: Observation,
    runtime: Sequence[RuntimeState],
    lowered_at: float | None = None,
    usual_hits: float | None = None,
) -> Diagnosis:
    """One diagnosis for all engines: the gravest, except that missing data outweighs calm ones.

    `lowered_at` is when the cap was last lowered to end a storm, `usual_hits` the hit ratio of the
    prefix cache that the load usually has.
    """
    blocking = observation.blocking()
    blocked = {problem.target for problem in blocking}
    caps = {each.target: each.effective.max_active_seqs for each in runtime}
    budgets = {each.target: each.effective.max_scheduled_tokens for each in runtime}
    found = [
        diagnose_engine(
            engine,
            caps.get(engine.target) or _cap_by_metric(known(engine.max_active_seqs)),
            settings.thresholds,
            lowered_at,
            Usual(budgets.get(engine.target), usual_hits),
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


def with_capacity(observation: Observation, runtime: Sequence[RuntimeState]) -> Observation:
    """With the cache's size as engines report it now: metrics keep that of the start's format."""
    sizes = {each.target: _capacity(each) for each in runtime}
    engines = tuple(
        engine
        if (tokens := sizes.get(engine.target)) is None
        else replace(engine, capacity_tokens=Known(tokens, engine.at or observation.at))
        for engine in observation.engines
    )
    return replace(observation, engines=engines)


def _capacity(state: RuntimeState) -> float | None:
    """Tokens that the cache holds at once: with eviction fewer than requests can have."""
    capacity = state.capacity
    if capacity.blocks is not None and capacity.block_size is not None:
        return float(capacity.blocks * capacity.block_size)
    return None if capacity.kv_cache_tokens is None else float(capacity.kv_cache_tokens)


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
    """Turn a proposal into an action, as far as the mode and whoever carries it out allow."""
    if settings.mode is Mode.OFF:
        return Action.HOLD, proposal, state.model_copy(update={"recommendation": None})
    if settings.mode is Mode.AUTO:
        standing = state.recommendation
        if standing is not None and standing.knob == Knob.MAX_ACTIVE_SEQS:
            state = state.model_copy(update={"recommendation": None})
        if proposal.change is None:
            return Action.HOLD, proposal, state
        if proposal.ability is Ability.CHANGE:
            return Action.CHANGE, proposal, remember_step(settings, state, proposal, now)
        if proposal.ability is Ability.TRIAL:
            return Action.TRIAL, proposal, remember_request(settings, state, proposal, now)
    if proposal.change is None:
        return Action.HOLD, proposal, withdraw(settings.cap, state, diagnosis.kind)
    if same_recommendation(state.recommendation, proposal.change):
        standing_still = replace(
            proposal,
            change=None,
            reason=Reason.RECOMMENDATION_STANDS,
            message=f"recommended before and unchanged: {proposal.message}",
        )
        return Action.HOLD, standing_still, state
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
