"""The trial's next state from what is seen: the same facts always give the same step.

A trial screens the change with probes that no user notices, gives it to some pods, judges, and ends
with all pods or none. Nothing here acts: the states say which pods are to have the change, whoever
runs the trial brings them there, and only what pods report moves the trial on.
"""

from dataclasses import replace

from kvserving_tuner.judge import Cause, Outcome, Trial, judge
from kvserving_tuner.judge import Verdict as Judgement
from kvserving_tuner.trials.alternation import Alternation
from kvserving_tuner.trials.endings import (
    ended_from_outside,
    exhausted,
    nothing_counts,
    rolled_back,
)
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.pacing import paced
from kvserving_tuner.trials.plan import GOODPUT_GAIN, Plan
from kvserving_tuner.trials.progress import (
    ACTIVE,
    SCREENED,
    SERVED,
    Conclusion,
    End,
    Progress,
    State,
    Verdict,
)
from kvserving_tuner.trials.tasks import is_shown
from kvserving_tuner.trials.waiting import NO_REQUEST, effect, waiting

PAUSED_NOTE = "paused"
MOST_SECONDS = 60.0
"""Most time between two looks that counts."""


def advance(plan: Plan, progress: Progress, facts: Facts) -> Progress:
    """The trial after one look."""
    passed = 0.0 if progress.looked_at is None else facts.now - progress.looked_at
    # Time that nobody looked is no time that was observed.
    passed = min(max(0.0, passed), MOST_SECONDS)
    progress = progress.model_copy(update={"looked_at": facts.now})
    if progress.state in ACTIVE:
        ended = ended_from_outside(plan, progress, facts)
        if ended is not None:
            return progress.ends(ended)
        if facts.wish is Wish.PAUSE:
            return progress.model_copy(update={"note": PAUSED_NOTE, "held": ""})
    match progress.state:
        case State.PENDING:
            return _start(plan, progress, facts, passed)
        case State.SCREENING:
            return _screen(plan, progress, facts, passed)
        case State.RUNNING | State.APPROVAL:
            return _run(plan, progress, facts, passed)
        case State.PROMOTING:
            return _promote(progress, facts)
        case State.ROLLING_BACK if facts.settled:
            return progress.becomes(State.FINISHED, finished_at=facts.now)
    return progress


def _start(plan: Plan, progress: Progress, facts: Facts, passed: float) -> Progress:
    if not facts.ready or not facts.steady:
        return progress.model_copy(update={"note": "waits for engines that answer and stay"})
    if not facts.offered:
        message = "engines do not take the change while they serve, so no trial can compare it"
        if facts.unoffered:
            message = f"{message}: {facts.unoffered}"
        return progress.ends(
            Conclusion(verdict=Verdict.FAILED, reason=End.NOT_OFFERED, message=message)
        )
    if facts.own is None and len(facts.ready) == 1 and not plan.single_replica:
        message = "the policy's ab.singleReplica is Refuse, and there is one engine"
        return progress.ends(
            Conclusion(verdict=Verdict.FAILED, reason=End.SINGLE_REPLICA, message=message)
        )
    probed = plan.likelihood or facts.tasks
    if plan.screened or not facts.recorded or not probed:
        return progress.becomes(State.SCREENING)
    return _expose(plan, progress, facts, passed)


def _screen(plan: Plan, progress: Progress, facts: Facts, passed: float) -> Progress:
    evidence = progress.quality(SCREENED)
    judgement = judge(Trial(evidence, {}), plan.rules)
    if judgement.outcome is Outcome.ROLL_BACK:
        return progress.ends(rolled_back(judgement, served=False))
    screened = not plan.screened or (
        bool(evidence)
        and all(
            found.count >= plan.min_samples and found.mean <= found.criterion.bound
            for found in evidence.values()
        )
    )
    if screened and facts.recorded:
        if not plan.likelihood and not facts.tasks:
            return progress.ends(nothing_counts(progress))
        return _expose(plan, progress, facts, passed)
    if screened:
        note = f"tasks are answered without the change; then {effect(plan, 0, facts)}"
        return waiting(plan, progress, facts, passed, note)
    if progress.screened >= facts.prompts and not facts.blocked:
        return progress.ends(exhausted(plan, judgement))
    note = f"probes score the change; then {effect(plan, 0, facts)}"
    return waiting(plan, progress, facts, passed, note)


def _expose(plan: Plan, progress: Progress, facts: Facts, passed: float) -> Progress:
    """Give the first pods the change, unless nobody could see what becomes of their users."""
    if facts.blocked:
        return waiting(plan, progress, facts, passed, "")
    return _enter(plan, progress, facts, 0)


def _run(plan: Plan, progress: Progress, facts: Facts, passed: float) -> Progress:
    progress = paced(plan, _with_pods(plan, progress, facts), facts, passed)
    guards = {name: c for name, c in progress.evidence.items() if name in plan.guarding}
    gain = progress.compared_by(plan.goodput())
    quality = progress.quality(SERVED)
    shown = {*facts.tasks, *progress.likelihood(SERVED)}
    required = {name: found for name, found in quality.items() if name in shown}
    watched = {name: found for name, found in quality.items() if name not in shown}
    judgement = judge(Trial(required, guards, watched, gain, facts.split), plan.rules)
    if judgement.cause is Cause.QUALITY_DROP and progress.candidates:
        # Engines have shown it themselves: users do not wait for metrics, or for pods that switch.
        return progress.ends(rolled_back(judgement))
    if progress.alternation is not None and not progress.alternation.with_change:
        if facts.blocked:
            # The block does not end while nothing can be measured.
            return waiting(plan, progress, facts, passed, "")
        if judgement.outcome is Outcome.ROLL_BACK:
            return progress.ends(rolled_back(judgement))
        # Clocks stand: the next block with the change tells.
        pair = progress.alternation.pair + 1
        note = f"pair {pair} of blocks: without the change"
        update = {"note": note, "held": "", "stalled_seconds": 0.0}
        return progress.model_copy(update=update)
    if not progress.candidates or not facts.changed >= set(progress.candidates):
        note = "pods take the change" if facts.own is None else _starting(plan, progress, facts)
        return waiting(plan, progress, facts, passed, note, stalls=False)
    if facts.blocked:
        return waiting(plan, progress, facts, passed, "")
    if judgement.cause is Cause.SPLIT_MISMATCH:
        # What arms finish follows from what they get.
        progress = progress.forgets(GOODPUT_GAIN)
        blocked = replace(facts, blocked=judgement.message)
        return waiting(plan, progress, blocked, passed, "")
    started = facts.now if progress.started_at is None else progress.started_at
    if facts.own is not None and len(progress.candidates) < plan.pods(progress.step, facts.engines):
        # Users are with those that are up already.
        progress = progress.model_copy(update={"started_at": started})
        if judgement.outcome is Outcome.ROLL_BACK:
            return progress.ends(rolled_back(judgement))
        note = _starting(plan, progress, facts)
        return waiting(plan, progress, facts, passed, note, stalls=False)
    if facts.own is not None and not plan.likelihood and not facts.tasks:
        return progress.ends(nothing_counts(progress))
    progress = progress.model_copy(
        update={
            "started_at": started,
            "step_seconds": progress.step_seconds + passed,
            "step_requests": progress.step_requests + facts.finished,
            "quiet_seconds": progress.quiet_seconds
            + (passed if progress.schedule.is_quiet else 0.0),
        }
    )
    if judgement.outcome is Outcome.ROLL_BACK:
        return progress.ends(rolled_back(judgement))
    if progress.step_seconds < plan.min_seconds or progress.step_requests < plan.min_requests:
        requests = f"{progress.step_requests:.0f} of {plan.min_requests} requests"
        seconds = f"{progress.step_seconds:.0f} of {plan.min_seconds:.0f} s"
        note = f"step needs {requests}, {seconds}"
        if not progress.step_requests and progress.step_seconds >= plan.min_seconds:
            # Connections that are kept alive stay with their pod, and few of them miss one easily.
            note += f"; {NO_REQUEST}"
        return waiting(plan, progress, facts, passed, note)
    unasked = [found for found in watched.values() if found.count < plan.min_samples]
    if judgement.outcome is Outcome.PROMOTE and unasked and facts.tasks_left:
        # They need not be shown to be kept, but a task that breaks has to have its say.
        note = f"tasks: {min(found.count for found in unasked)} of {plan.min_samples} pairs"
        return waiting(plan, progress, facts, passed, note)
    step = plan.next_step(progress.step, facts.engines)
    takes_all = step is not None and plan.pods(step, facts.engines) == facts.engines
    if takes_all and facts.tasks_left and not is_shown(plan, progress, facts.tasks):
        # It leaves no engine in 16 bits to compare answers with.
        note = "the next step takes every engine, and waits for what tasks show"
        return waiting(plan, progress, facts, passed, note)
    # A gain too shows beside engines without the change.
    waits = gain is not None and not gain.is_safe(plan.rules.false_promotion)
    if step is not None and not (waits and takes_all):
        return _enter(plan, progress, facts, step)
    return _decide(plan, progress, facts, passed, judgement)


def _starting(plan: Plan, progress: Progress, facts: Facts) -> str:
    """What a step whose pods are started waits for."""
    wanted = plan.pods(progress.step, facts.engines)
    return f"engines with the change start: {len(progress.candidates)} of {wanted} answer"


def _decide(
    plan: Plan, progress: Progress, facts: Facts, passed: float, judgement: Judgement
) -> Progress:
    """At the end of the last step."""
    likelihood = progress.likelihood(SERVED)
    if judgement.outcome is Outcome.PROMOTE and (likelihood or not plan.likelihood):
        if plan.manual and facts.wish is not Wish.PROMOTE:
            note = f"passed, waits for approval: {judgement.message}"
            return progress.becomes(State.APPROVAL, alternation=None, note=note)
        return progress.ends(
            Conclusion(verdict=Verdict.PROMOTED, reason=judgement.cause, message=judgement.message)
        )
    no_probe = judgement.cause is Cause.QUALITY_NOT_SHOWN and judgement.finding is None
    if judgement.outcome is Outcome.INCONCLUSIVE and not no_probe:
        return progress.ends(
            Conclusion(
                verdict=Verdict.INCONCLUSIVE, reason=judgement.cause, message=judgement.message
            )
        )
    if judgement.cause is Cause.NO_GAIN:
        if progress.quiet_seconds < plan.gain_seconds:
            return waiting(plan, progress, facts, passed, judgement.message)
        message = f"no gain has shown in {progress.quiet_seconds:.0f} s: {judgement.message}"
        return progress.ends(
            Conclusion(verdict=Verdict.INCONCLUSIVE, reason=Cause.NO_GAIN, message=message)
        )
    prompts_decide = plan.likelihood and (
        not likelihood or not is_shown(plan, progress, likelihood)
    )
    tasks_decide = not is_shown(plan, progress, facts.tasks)
    if (prompts_decide and progress.served >= facts.prompts) or (
        tasks_decide and not facts.tasks_left
    ):
        return progress.ends(exhausted(plan, judgement))
    return waiting(plan, progress, facts, passed, judgement.message)


def _enter(plan: Plan, progress: Progress, facts: Facts, step: int) -> Progress:
    alone = len(facts.ready) == 1 and facts.own is None
    turns = alone and (plan.guards or plan.gain is not None)
    entered = progress.becomes(
        State.RUNNING,
        step=step,
        step_seconds=0.0,
        step_requests=0.0,
        quiet_seconds=0.0,
        stalled_seconds=0.0,
        alternation=Alternation() if turns else progress.alternation,
        note=effect(plan, step, facts),
    )
    return _with_pods(plan, entered, facts)


def _with_pods(plan: Plan, progress: Progress, facts: Facts) -> Progress:
    """With as many candidates as the step wants: those that are it stay, gone ones are replaced."""
    if not facts.ready:
        return progress
    if facts.own is not None:
        chosen = tuple(sorted(facts.own & set(facts.ready)))
        return progress.model_copy(update={"candidates": chosen})
    if progress.alternation is not None:
        if len(facts.ready) == 1:
            only = facts.ready if progress.alternation.with_change else ()
            return progress.model_copy(update={"candidates": only})
        progress = progress.model_copy(update={"alternation": None})
    wanted = plan.pods(progress.step, len(facts.ready))
    kept = [name for name in progress.candidates if name in facts.ready][:wanted]
    # A pod that has the change already need not be switched again.
    others = sorted(
        set(facts.ready) - set(kept), key=lambda name: (name not in facts.changed, name)
    )
    chosen = (*kept, *others[: wanted - len(kept)])
    return progress.model_copy(update={"candidates": chosen})


def _promote(progress: Progress, facts: Facts) -> Progress:
    if facts.refused:
        # Pods that have taken it go back too: a fleet of two settings is nobody's wish.
        return progress.ends(
            Conclusion(verdict=Verdict.FAILED, reason=End.SETTINGS_REFUSED, message=facts.refused)
        )
    if facts.settled:
        return progress.becomes(State.FINISHED, finished_at=facts.now)
    return progress
