"""From what the rules of the cap say to what is done; pure.

Before the ladder come the change that is watched and the load that is back; after it, what holds a
change back that is due.
"""

from dataclasses import replace

from kvserving_tuner.decision import (
    Case,
    Change,
    DiagnosisKind,
    Knob,
    Reason,
    Risk,
    RungName,
)
from kvserving_tuner.guardrails import change_budget, held_back
from kvserving_tuner.ladder.climb import Climb, Step, climb, passed_before
from kvserving_tuner.ladder.forecast import growth, more_sequences
from kvserving_tuner.ladder.situation import Situation
from kvserving_tuner.proposal import Knobs, Proposal
from kvserving_tuner.remembered import Due, Judged, Tried, failed
from kvserving_tuner.returning import restored_cap, restored_format, unfit_format
from kvserving_tuner.rules import Ability
from kvserving_tuner.settings import Mode
from kvserving_tuner.state import TunerState
from kvserving_tuner.verdicts import with_verdict
from kvserving_tuner.watching import Finding, look

LOOKED_AT = frozenset(
    {
        Reason.HEALTHY,
        Reason.KV_PRESSURE,
        Reason.KV_WOULD_FILL,
        Reason.CEILING_REMEMBERED,
        Reason.COOLDOWN,
        Reason.AT_MAXIMUM,
        Reason.AT_MINIMUM,
        Reason.NO_TPOT_SLACK,
        Reason.NO_RUNTIME_API,
        Reason.KNOB_NOT_ALLOWED,
    }
)
"""Reasons to leave the cap alone after which the ladder is looked at. The others say that the data
or the last change have yet to settle."""
_CALM_CHANGES = frozenset({Reason.SEQUENCES_WAIT_KV_FREE, Reason.REGIME_REMEMBERED})


def take_step(
    situation: Situation, knobs: Knobs | Proposal, proposal: Proposal
) -> tuple[Proposal, TunerState]:
    """What is done in the end, and the memory of how it was decided."""
    state = situation.state
    if situation.diagnosis.kind is DiagnosisKind.PREEMPTION_STORM and proposal.change is not None:
        return _of_the_cap(situation, proposal), state
    answer, state = _watched(situation)
    if answer is not None:
        return answer, state
    if situation.diagnosis.kind is DiagnosisKind.UNKNOWN:
        # Nothing but a way back rests on data that is missing, stale or contradicts itself.
        return proposal, state
    situation = replace(situation, state=state)
    answer = unfit_format(situation)
    if answer is not None:
        return answer, state
    answer = restored_format(situation)
    if answer is not None:
        return answer, state
    answer, state = restored_cap(situation, knobs, proposal)
    if answer is not None:
        return _of_the_cap(situation, answer), state
    situation = replace(situation, state=state)
    if proposal.change is not None:
        return _calm_change(situation, proposal), state
    if proposal.reason not in LOOKED_AT:
        return proposal, state
    if state.watch is not None:
        what = f"{state.watch.knob} {state.watch.from_value} to {state.watch.to_value}"
        seen = look(
            state.watch, situation.settings.guardrails, situation.settings.slo, situation.now
        )
        message = f"{what} is watched: {seen.message}"
        return Proposal(None, Reason.WATCHING, message, proposal.numbers), state
    return _ladder(situation, proposal)


def _of_the_cap(situation: Situation, proposal: Proposal) -> Proposal:
    """A change of the cap, with what the ladder has to say about it."""
    change, forecast = proposal.change, None
    if change is None:
        return proposal
    before, after = change.from_value, change.to_value
    if isinstance(before, int) and isinstance(after, int) and after > before:
        running = situation.running
        ratio = min(after / before, (running + situation.waiting) / running) if running else 1.0
        forecast = more_sequences(
            ratio, growth(situation.state.samples, running), f"{ratio:.2f} times the sequences"
        )
    case = Case(RungName.ACTIVE_CAP, Risk.REVERSIBLE, forecast, 0.0)
    passed = passed_before(situation, RungName.ACTIVE_CAP)
    return replace(proposal, case=case, passed_over=passed)


def _calm_change(situation: Situation, proposal: Proposal) -> Proposal:
    held = (
        change_budget(situation.settings, situation.state, situation.now)
        if proposal.reason in _CALM_CHANGES
        else None
    )
    if held is not None:
        return Proposal(None, held.reason, f"{held.message}; {proposal.message}", proposal.numbers)
    return _of_the_cap(situation, proposal)


def _watched(situation: Situation) -> tuple[Proposal | None, TunerState]:
    """The end of a watched change, if it has come."""
    state, now = situation.state, situation.now
    watch, guardrails = state.watch, situation.settings.guardrails
    if watch is None:
        return None, state
    if watch.knob is Knob.KV_CACHE_DTYPE and situation.dtype not in (watch.to_value, None):
        # Somebody else has set another format meanwhile: theirs is the new baseline.
        return None, state.model_copy(update={"watch": None})
    load = state.loads.current
    if watch.regime and load != watch.regime:
        message = f"the load became {load} while {watch.to_value} was watched"
        return _taken_back(state, Reason.LOAD_CHANGED, message), state
    seen = look(watch, guardrails, situation.settings.slo, now)
    match seen.finding:
        case Finding.GOES_ON:
            return None, state
        case Finding.PASSED:
            passed = Tried(
                knob=watch.knob, value=watch.to_value, regime=watch.regime, judged=Judged.PASSED,
                at=now, until=now + guardrails.tabu_seconds, message=seen.message,
            )  # fmt: skip
            return None, with_verdict(state, passed).model_copy(update={"watch": None})
        case Finding.HARMFUL | Finding.NOT_KNOWN:
            return _taken_back(state, Reason.ROLLED_BACK, seen.message), state


def _taken_back(state: TunerState, reason: Reason, message: str) -> Proposal:
    watch = state.watch
    if watch is None:
        raise ValueError("expected a change that is watched, got none")
    to, why = watch.from_value, message
    start = state.start_kv_cache_dtype
    if watch.knob is Knob.KV_CACHE_DTYPE and reason is Reason.ROLLED_BACK and start is not None:
        before = failed(state.tried, watch.knob, watch.from_value, {watch.regime}, watch.at)
        if before is not None and start not in (watch.from_value, watch.to_value):
            to, reason = start, Reason.FALLBACK
            why = f"{message}; {watch.from_value} had failed before: {before.message}"
    change = Change(watch.knob, watch.to_value, to)
    return Proposal(change, reason, f"{watch.knob} goes back from {watch.to_value} to {to}: {why}")


def _ladder(situation: Situation, proposal: Proposal) -> tuple[Proposal, TunerState]:
    found = climb(situation)
    state = _without_old_advice(situation, found)
    best = _best(situation, found, state)
    holding = replace(proposal, passed_over=found.passed_over)
    if best is None:
        gap = 2 * situation.settings.windows.full_seconds
        if state.due is not None and situation.now - state.due.last > gap:
            state = state.model_copy(update={"due": None})
        return holding, state
    asked = state.asked
    if asked is not None and situation.now < asked.until:
        message = f"{asked.knob} {asked.value} was asked for, and its verdict is awaited"
        return replace(holding, reason=Reason.TRIAL_STANDS, message=message), state
    due = _due(situation, best)
    state = state.model_copy(update={"due": due})
    candidate, rules = best.candidate, situation.settings.ladder
    wanted = rules.windows * situation.settings.windows.full_seconds
    proposed = Proposal(
        candidate.change, candidate.reason, candidate.message, proposal.numbers,
        case=best.case(situation), passed_over=found.passed_over, ability=Ability.RECOMMEND,
    )  # fmt: skip
    if situation.now - due.since < wanted:
        message = f"{candidate.message}: due for {situation.now - due.since:.0f} of {wanted:.0f} s"
        return replace(proposed, change=None, reason=Reason.CONFIRMING, message=message), state
    if best is not found.step:
        return proposed, state
    held = held_back(situation.settings, state, best, situation.now)
    if held is not None:
        message = f"{held.message}; due: {candidate.message}"
        return replace(proposed, change=None, reason=held.reason, message=message), state
    ability = situation.settings.ability(candidate.knob) or Ability.RECOMMEND
    return replace(proposed, ability=ability), state


def _best(situation: Situation, found: Climb, state: TunerState) -> Step | None:
    """The rung to go on with: a recommendation is told once, and then does not stand in the way."""
    advice, standing = found.advice, state.recommendation
    if found.step is None or advice is None:
        return found.step or advice
    # Values that are computed from rates move with them: it is the same advice.
    told = standing is not None and standing.knob == advice.candidate.knob
    return found.step if told and situation.settings.mode is Mode.AUTO else advice


def _due(situation: Situation, step: Step) -> Due:
    """Since when a rung has been due; one that was not for a while begins anew."""
    now, due, value = situation.now, situation.state.due, step.candidate.to_value
    gap = 2 * situation.settings.windows.full_seconds
    if due is None or due.rung is not step.rung.name or now - due.last > gap:
        return Due(rung=step.rung.name, value=value, since=now, last=now)
    # A name is another change; a number that is computed from rates moves with them.
    if due.value != value and not (isinstance(due.value, int) and isinstance(value, int)):
        return Due(rung=step.rung.name, value=value, since=now, last=now)
    return due.model_copy(update={"last": now})


def _without_old_advice(situation: Situation, found: Climb) -> TunerState:
    """Without a recommendation that the ladder has not supported for a while."""
    state = situation.state
    standing = state.recommendation
    if standing is None or standing.knob == Knob.MAX_ACTIVE_SEQS:
        return state
    supported = any(
        each is not None and each.candidate.knob == standing.knob
        for each in (found.step, found.advice)
    )
    if supported or state.agreeing_count < situation.settings.cap.confirmations:
        return state
    return state.model_copy(update={"recommendation": None})
