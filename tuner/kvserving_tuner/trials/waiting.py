"""What a trial that goes on waits for, and for how long evidence may stay away."""

import re

from kvserving_tuner.trials.facts import Facts
from kvserving_tuner.trials.plan import OnStall, Plan
from kvserving_tuner.trials.progress import Conclusion, End, Progress, State, Verdict

NO_REQUEST = "no request reaches a pod with the change"
NO_ANSWER = "an engine has not answered a probe yet"
_AGE = re.compile(r"\b\d+ s\b")
"""Grows from look to look, and would be news each time."""
SILENT_SECONDS = 30.0
"""Time without requests, or without the answer of a probe, after which people are told."""


def effect(plan: Plan, step: int, facts: Facts) -> str:
    """What users are to expect of a step."""
    ready = len(facts.ready)
    if facts.own is not None:
        if facts.replicas <= 1:
            return "an engine with it is started beside the only one"
        wanted = plan.pods(step, facts.engines)
        return f"{wanted} of {facts.replicas} engines are replaced by ones that start with it"
    if not ready:
        return "engines that answer take it"
    pods = "the only engine" if ready == 1 else f"{plan.pods(step, ready)} of {ready} engines"
    verb = "takes" if ready == 1 else "take"
    return f"{pods} {verb} it without a restart, and what is in flight there is computed again"


def waiting(
    plan: Plan,
    progress: Progress,
    facts: Facts,
    passed: float,
    note: str,
    *,
    stalls: bool = True,
) -> Progress:
    """Go on, or do what the policy says where evidence has stayed away for too long."""
    silent = progress.state is State.RUNNING and facts.finished <= 0
    stalled = progress.stalled_seconds + passed if stalls and (facts.blocked or silent) else 0.0
    away = max(stalled, facts.unanswered_seconds if stalls else 0.0)
    why = facts.blocked or _silence(note, stalled, facts)
    if facts.blocked:
        note = f"holds: {why}"
    elif why not in note:
        note = f"{note}; {why}"
    held = _AGE.sub("a while", why)
    progress = progress.model_copy(update={"stalled_seconds": stalled, "note": note, "held": held})
    if away < plan.stall_seconds:
        return progress
    message = f"no usable evidence for {away:.0f} s: {why or NO_REQUEST}"
    if plan.on_stall is OnStall.HOLD:
        return progress.model_copy(update={"note": message})
    return progress.ends(
        Conclusion(verdict=Verdict.INCONCLUSIVE, reason=End.STALLED, message=message)
    )


def _silence(note: str, stalled: float, facts: Facts) -> str:
    """What a trial hears nothing of."""
    if facts.unanswered_seconds >= SILENT_SECONDS:
        return NO_ANSWER
    return NO_REQUEST if NO_REQUEST in note or stalled >= SILENT_SECONDS else ""
