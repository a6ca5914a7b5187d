"""Conditions of a KVServing from the facts: status, reason and message of each. Pure."""

from dataclasses import dataclass

from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import Switch, TuningMode
from kvserving_operator.facts import Facts
from kvserving_operator.observe import PodView
from kvserving_operator.rollout import Phase, crash
from kvserving_operator.tuning import REJECTED
from kvserving_tuner.decision import Action
from kvserving_tuner.decision import Reason as TunerReason
from kvserving_tuner.trials.progress import Verdict

UNSCHEDULABLE_GRACE_SECONDS = 5.0
"""A pod is unschedulable for a moment whenever its volume or node is only just appearing."""


@dataclass(frozen=True)
class Outcome:
    """Status of one condition; None is unknown."""

    status: bool | None
    reason: Reason
    message: str


def ready(facts: Facts) -> Outcome:
    """Whether completions are answered, possibly by pods of an older spec."""
    wanted, have = facts.serving.spec.replicas, facts.ready
    if have >= wanted > 0:
        return Outcome(True, Reason.SERVING, f"{have} of {wanted} engines answer completions")
    if have:
        return Outcome(
            True, Reason.PARTIALLY_READY, f"{have} of {wanted} engines answer completions"
        )
    if wanted == 0:
        return Outcome(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    if facts.step.phase in (Phase.REFUSED, Phase.STOPPED):
        return Outcome(False, Reason.NO_READY_ENGINE, facts.step.message)
    problem = _pod_problem(facts)
    if problem is not None:
        return Outcome(False, Reason.NO_READY_ENGINE, problem.message)
    if _waits_for_leaving(facts):
        message = f"0 of {wanted} engines: the next one waits for what a leaving one still holds"
        return Outcome(False, Reason.STARTING, message)
    return Outcome(False, Reason.STARTING, f"0 of {wanted} engines have loaded the model")


def progressing(facts: Facts) -> Outcome:
    """Whether the pods are on their way to the spec."""
    moving = facts.step.phase in (Phase.CHECKING, Phase.TRYING, Phase.ROLLING)
    switched = facts.switched
    if facts.step.phase is Phase.DONE and switched.pending and not switched.refusals:
        left, all = len(switched.pending), len(facts.engines)
        message = f"{all - left} of {all} engines run with {switched.settings}"
        return Outcome(True, Reason.APPLYING_SETTINGS, message)
    return Outcome(moving, facts.step.reason, facts.step.message)


def degraded(facts: Facts) -> Outcome:
    """Whether something needs a person."""
    step = facts.step
    if facts.api_problem:
        return Outcome(True, Reason.API_ERROR, facts.api_problem)
    blocked = step.phase in (Phase.REFUSED, Phase.STOPPED)
    if blocked or step.reason in (Reason.IMAGE_PULL_FAILED, Reason.UNSCHEDULABLE):
        return Outcome(True, step.reason, step.message)
    problem = _pod_problem(facts)
    if problem is not None:
        return problem
    refusal = next(iter(facts.switched.refusals), None)
    if refusal is not None:
        return Outcome(True, Reason.SETTINGS_REFUSED, facts.switched.complaint(refusal))
    return Outcome(False, Reason.AS_EXPECTED, "nothing is wrong")


def metrics_available(facts: Facts) -> Outcome | None:
    """Whether the numbers behind decisions are there; None where nothing was looked at."""
    observation = facts.turn.observation
    if observation is None:
        return None
    if not observation.engines:
        return Outcome(None, Reason.NOT_OBSERVED, "no engine is ready to be observed")
    blocking = observation.blocking()
    problem = next(iter(blocking or observation.problems), None)
    if problem is None:
        engines = len(observation.engines)
        return Outcome(True, Reason.METRICS_FRESH, f"metrics of {engines} engines are fresh")
    where = (
        f"{problem.target}: " if problem.target and problem.target not in problem.message else ""
    )
    return Outcome(not blocking, Reason(problem.reason.value), f"{where}{problem.message}")


def quality_gate(facts: Facts) -> Outcome:
    """Verdict on output quality: that of the latest trial, or where the one under way stands."""
    if facts.policy_problem is not None:
        return Outcome(None, *facts.policy_problem)
    record, settled = facts.trials.running, facts.trials.settled
    restarted = facts.trials.restarted
    if record is not None:
        state = record.progress.state.value
        message = f"trial {record.name}, {record.change}: {state}"
        if record.progress.held:
            message = f"{message}, holds: {record.progress.held}"
        return Outcome(None, Reason.TRIAL_RUNNING, message)
    last = 0.0 if settled is None or settled.ended is None else settled.ended.at
    # What is not asked for any more says nothing of what is in force.
    asked = facts.step.phase in (Phase.TRYING, Phase.TURNED_DOWN)
    counts = restarted is not None and (asked or restarted.verdict is Verdict.PROMOTED)
    if restarted is not None and counts and restarted.ended.at > last:
        message = f"trial {restarted.trial}, {restarted.message}"
        return _judged(restarted.verdict, message)
    if settled is None or not settled.trial:
        return Outcome(None, Reason.NOT_RUN, "no trial has measured quality")
    message = f"trial {settled.trial}, {settled.message}"
    if settled.verdict is Verdict.PROMOTED:
        watch = facts.trials.watch
        since = f"; since then: {watch.note}" if watch is not None and watch.note else ""
        return Outcome(True, Reason.PASSED, message + since)
    return _judged(settled.verdict, message)


def _judged(verdict: Verdict | None, message: str) -> Outcome:
    if verdict is Verdict.PROMOTED:
        return Outcome(True, Reason.PASSED, message)
    if verdict is Verdict.ROLLED_BACK:
        return Outcome(False, Reason.FAILED, message)
    return Outcome(None, Reason.INCONCLUSIVE, message)


def tuning_active(facts: Facts) -> Outcome | None:
    """Whether the tuner may change settings now; None where that was not looked at."""
    spec, turn = facts.serving.spec, facts.turn
    if spec.tuning.mode is TuningMode.OFF:
        return Outcome(False, Reason.TUNING_OFF, "spec.tuning.mode is Off")
    if spec.engine.plugin is Switch.DISABLED or turn.readback.no_runtime_api:
        message = "the engine has no runtime API: MaxActiveSeqs changes by a restart only"
        return Outcome(False, Reason.NO_RUNTIME_API, message)
    moving = facts.step.phase is Phase.ROLLING or facts.step.state.candidates is not None
    if moving or not facts.ready:
        return Outcome(False, Reason.WAITING_FOR_ENGINES, "pods are being started or replaced")
    if turn.observation is None:
        return None
    if turn.observation.blocking():
        message = f"holds: {turn.observation.blocking()[0].message}"
        return Outcome(False, Reason.WAITING_FOR_METRICS, message)
    if spec.tuning.mode is TuningMode.RECOMMEND:
        message = "spec.tuning.mode is Recommend: nothing is changed"
        return Outcome(False, Reason.RECOMMEND_ONLY, message)
    if turn.outcome == REJECTED:
        return Outcome(False, Reason.RUNTIME_REJECTED, turn.rejection)
    decision = turn.decision
    changed = decision is not None and decision.action is Action.CHANGE
    if decision is not None and (changed or decision.reason is TunerReason.COOLDOWN):
        return Outcome(True, Reason.COOLING_DOWN, "a recent change must settle first")
    return Outcome(True, Reason.TUNING, "the tuner observes and may act")


def rolled_back(facts: Facts) -> Outcome:
    """Whether engines run with something else than the spec because a trial did not pass."""
    settled = facts.trials.settled
    if facts.step.phase is Phase.TURNED_DOWN:
        message = f"engines run the template from before the edit: {facts.step.message}"
        return Outcome(True, Reason.TRIAL_ROLLED_BACK, message)
    if settled is not None and settled.rolled_back:
        message = f"engines run {settled.settings}, not {settled.asked}: {settled.message}"
        return Outcome(True, Reason.TRIAL_ROLLED_BACK, message)
    message = f"no trial of generation {facts.serving.metadata.generation} was undone"
    return Outcome(False, Reason.NOT_ROLLED_BACK, message)


def routed(facts: Facts) -> Outcome:
    """Whether users' requests come in by a route whose weights count."""
    traffic = facts.traffic
    return Outcome(traffic.accepted, traffic.reason, traffic.message)


def _waits_for_leaving(facts: Facts) -> bool:
    """Whether an engine that drains still holds what the next one needs: it will leave."""
    leaving = any(pod.deleting for pod in facts.pods)
    return leaving and any(pod.unschedulable for pod in facts.engines)


def _pod_problem(facts: Facts) -> Outcome | None:
    """First pod that cannot come up by itself."""
    waits = _waits_for_leaving(facts)
    for pod in facts.engines:
        # What becomes of a trial's own pods is for the trial to tell.
        if pod.ready or pod.apart:
            continue
        if pod.unschedulable and waits:
            continue
        if pod.unschedulable and facts.now - pod.created_at >= UNSCHEDULABLE_GRACE_SECONDS:
            return Outcome(True, Reason.UNSCHEDULABLE, f"pod {pod.name}: {pod.unschedulable}")
        if pod.image_problem:
            return Outcome(True, Reason.IMAGE_PULL_FAILED, _waiting(pod))
        if pod.config_problem:
            return Outcome(True, Reason.ROLLOUT_FAILED, _waiting(pod))
        if pod.crash_looping:
            reason, message = crash(pod)
            return Outcome(True, reason, message)
    return None


def _waiting(pod: PodView) -> str:
    return f"pod {pod.name}: {pod.waiting_reason}: {pod.waiting_message}"
