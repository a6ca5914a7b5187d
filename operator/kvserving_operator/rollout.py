"""When pods change: check a new template first, put it in force, watch it, go back where it fails.

Pure. One call moves the state by at most one step and says where things stand; whatever interrupts
the operator, the next call starts from the stored state and the objects that exist.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from kvserving_operator.actions import Action, Announce
from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import Switch
from kvserving_operator.candidates import arranged
from kvserving_operator.checks import (
    CHECKING,
    check_pod,
    drop_checks,
    judge,
    judged,
    new_check,
    progress,
    refusal_of,
)
from kvserving_operator.observe import PodView, last_words
from kvserving_operator.revisions import (
    Revision,
    RevisionState,
    Verdict,
    inputs_hash,
    render_revision,
)
from kvserving_operator.situation import Situation
from kvserving_operator.trying import asked_for, needs_trial, turned_down

IMAGE_GRACE_SECONDS = 120.0
"""How long a new pod's image may fail to arrive before its template counts as failed: registries
have short outages."""


class Phase(Enum):
    """Where the pods stand on their way to the spec."""

    CHECKING = auto()
    """A check pod is looking at the next template; the pods in force are untouched."""
    REFUSED = auto()
    """The next template is known not to work; the pods in force are untouched."""
    TRYING = auto()
    """The next template is tried on pods of its own, beside those in force."""
    TURNED_DOWN = auto()
    """A trial of the next template was not passed; the pods in force stay."""
    ROLLING = auto()
    """Pods of the template in force are coming up."""
    STOPPED = auto()
    """The only template there is does not work: no pods, so that none crash for ever."""
    DONE = auto()
    """Every pod runs the spec's template."""


@dataclass(frozen=True)
class Step:
    """Outcome of one step."""

    state: RevisionState
    phase: Phase
    reason: Reason
    message: str
    actions: tuple[Action, ...] = ()
    stopped: bool = False
    """Whether the template in force must run no pods: it is the only one and does not work."""
    tries: Revision | None = None
    """Template that is to be tried now."""


def advance(at: Situation) -> Step:
    """Move towards the spec by at most one step."""
    at, settled = _settle(_retried(at))
    step = _decide(at)
    step = replace(step, state=arranged(at, step.state), tries=_tried(at, step))
    current = step.state.current
    only_one_failed = (
        current is not None
        and step.state.good is None
        and _refused(step.state, current, at.retry) is not None
    )
    return replace(step, actions=(*settled, *step.actions), stopped=only_one_failed)


def _tried(at: Situation, step: Step) -> Revision | None:
    """The template on trial, also while its check has to be made again or a claim is missing."""
    record, candidate = at.trials.running, step.state.candidate
    again = record is not None and candidate is not None and record.revision == candidate.hash
    return candidate if again and step.phase is Phase.CHECKING else step.tries


def _decide(at: Situation) -> Step:
    wanted = inputs_hash(at.spec)
    current, candidate, good = at.state.current, at.state.candidate, at.state.good
    if current and current.follows(at.spec, at.state.proven):
        current = current.following(at.spec, at.asked)
        state = at.state.with_current(current).model_copy(update={"candidate": None})
        return _watch(replace(at, state=state), current)
    if good and good.inputs_hash == wanted:
        # Back to what is known to work: nothing to check.
        return _put_in_force(at, good, drop_checks(at))
    if candidate is None or candidate.inputs_hash != wanted:
        candidate = render_revision(
            at.ref, at.spec, at.settings, at.state, at.now, at.asked, at.tried
        )
        if current and current.hash == candidate.hash:
            return _respelled(at, current, wanted)
        at = replace(at, state=at.state.model_copy(update={"candidate": candidate}))
    return _check(at, candidate)


def _respelled(at: Situation, current: Revision, wanted: str) -> Step:
    """Take over another spelling of the same pods."""
    same = current.model_copy(update={"inputs_hash": wanted}).following(at.spec, at.asked)
    state = at.state.with_current(same).model_copy(update={"candidate": None})
    return _watch(replace(at, state=state), same)


def _retried(at: Situation) -> Situation:
    """Forget a failure of the only template once the user asks for another attempt."""
    current = at.state.current
    if current is None or at.state.good is not None:
        return at
    failed = any(v.template_hash == current.hash and not v.ok for v in at.state.verdicts)
    if not failed or at.state.verdict(current.hash, at.retry) is not None:
        return at
    verdicts = tuple(v for v in at.state.verdicts if v.template_hash != current.hash)
    update = {"current": current.model_copy(update={"since": at.now}), "verdicts": verdicts}
    return replace(at, state=at.state.model_copy(update=update))


def _settle(at: Situation) -> tuple[Situation, tuple[Action, ...]]:
    """Judge the template in force until it has proven itself.

    It is good once all its pods are ready, and taken back once it fails.
    """
    current, good = at.state.current, at.state.good
    if current is None or (good is not None and good.hash == current.hash):
        return at, ()
    if _refused(at.state, current, at.retry) is not None:
        return at, ()
    mine = [pod for pod in at.pods if pod.revision == current.hash and not pod.deleting]
    if at.spec.replicas and sum(pod.ready for pod in mine) >= at.spec.replicas:
        state = at.state.model_copy(update={"good": current})
        sentence = f"{len(mine)} pods run template {current.hash[:8]} and are ready"
        return replace(at, state=state), (Announce(Reason.ROLLOUT_COMPLETE.value, sentence),)
    failure = _failure(at, current)
    if failure is None:
        return _checked(at, current), ()
    reason, message = failure
    if good is not None and reason is not Reason.PREFLIGHT_FAILED:
        reason = Reason.ROLLOUT_FAILED
        message = f"{message}; pods return to template {good.hash[:8]}"
    state = at.state.judged(refusal_of(at, current, reason, message))
    if good is not None:
        back = good.model_copy(update={"since": at.now})
        wanted = current.inputs_hash == inputs_hash(at.spec)
        candidate = current if wanted else state.candidate
        state = state.model_copy(update={"current": back, "candidate": candidate})
    return replace(at, state=state), (Announce(reason.value, message, warning=True),)


def _checked(at: Situation, current: Revision) -> Situation:
    """Note that the check of a template in force, which did not wait for it, has passed."""
    passed = judged(at, current)
    return replace(at, state=at.state.judged(passed[0])) if passed else at


def _refused(state: RevisionState, revision: Revision, retry: str) -> Verdict | None:
    known = state.verdict(revision.hash, retry)
    return known if known is not None and not known.ok else None


def _check(at: Situation, candidate: Revision) -> Step:
    """Decide on the next template by its check pod."""
    tried = needs_trial(at, candidate)
    if tried:
        at = replace(at, state=asked_for(at, everything=False))
        refused = turned_down(at, candidate)
        if refused:
            state, drops = asked_for(at, everything=True), drop_checks(at)
            return Step(state, Phase.TURNED_DOWN, Reason.TRIAL_ROLLED_BACK, refused, drops)
    # A trial says itself what users are to expect.
    effect = "" if tried else _effect(at)
    known = at.state.verdict(candidate.hash, at.retry)
    if known is not None and not known.ok:
        reason = Reason(known.reason)
        return Step(at.state, Phase.REFUSED, reason, known.message, drop_checks(at))
    if at.missing:
        # Pods would wait for it for ever, those in force among them.
        message = f"{at.missing}; pods are left as they are until it is there"
        return Step(at.state, Phase.CHECKING, Reason.UNSCHEDULABLE, message, drop_checks(at))
    if known is not None or at.spec.engine.plugin is Switch.DISABLED:
        return _take_up(at, candidate, drop_checks(at))
    pod = check_pod(at, candidate)
    drops = drop_checks(at, keep=candidate)
    if pod is None:
        actions = (*drops, new_check(at, candidate))
        message = f"{CHECKING}{effect}"
        return Step(at.state, Phase.CHECKING, Reason.PREFLIGHT_RUNNING, message, actions)
    found = judge(at, candidate, pod)
    if found is None:
        # With no pod to protect, waiting long for the check only delays the first one.
        first = at.state.current is None
        if first and at.now - pod.created_at >= at.settings.preflight_first_wait_seconds:
            return _take_up(at, candidate, drops)
        reason, message = progress(pod)
        if reason is Reason.PREFLIGHT_RUNNING:
            message = f"{message}{effect}"
        return Step(at.state, Phase.CHECKING, reason, message, drops)
    verdict, announcement = found
    at = replace(at, state=at.state.judged(verdict))
    actions = (*drop_checks(at), *([announcement] if announcement else []))
    if verdict.ok:
        return _take_up(at, candidate, actions)
    return Step(at.state, Phase.REFUSED, Reason(verdict.reason), verdict.message, actions)


def _take_up(at: Situation, candidate: Revision, actions: tuple[Action, ...]) -> Step:
    """Try a template that has passed its check, or make it the one to run."""
    record = at.trials.running
    mine = record is not None and record.revision == candidate.hash
    if mine and record is not None and record.ready_for_all:
        return _put_in_force(at, candidate, actions)
    answers = any(pod.ready and not pod.deleting for pod in at.pods)
    # Where nobody answers there is nothing to compare with, and nobody to protect.
    if not needs_trial(at, candidate) or not (mine or answers):
        return _put_in_force(at, candidate, actions)
    if not at.state.proven:
        message = "the next template is tried once all pods run the one in force"
        return Step(at.state, Phase.TRYING, Reason.TRIAL_RUNNING, message, actions)
    message = f"template {candidate.hash[:8]} is tried on pods of its own"
    return Step(at.state, Phase.TRYING, Reason.TRIAL_RUNNING, message, actions, tries=candidate)


def _put_in_force(at: Situation, revision: Revision, actions: tuple[Action, ...]) -> Step:
    """Make a template the one to run; its pods are watched from the next step on."""
    current = revision.model_copy(update={"since": at.now})
    state = at.state.model_copy(update={"current": current, "candidate": None})
    message = f"pods are being replaced to run template {revision.hash[:8]}{_effect(at)}"
    return Step(state, Phase.ROLLING, Reason.ROLLING_OUT, message, actions)


def _effect(at: Situation) -> str:
    """What users are to expect of the replacement of pods; empty where none answer yet."""
    if not any(pod.ready and not pod.deleting for pod in at.pods):
        return ""
    wanted = at.spec.replicas
    least = max(0, wanted - at.spec.rollout.max_unavailable)
    if least:
        return f"; at least {least} of {wanted} engines answer while pods are replaced"
    return "; no engine answers from when the old pods leave until a new one has loaded the model"


def _watch(at: Situation, current: Revision) -> Step:
    """Say how far the pods of the template in force are."""
    proven = at.state.proven
    known = _refused(at.state, current, at.retry)
    if known is not None and not proven:
        return Step(at.state, Phase.STOPPED, Reason(known.reason), known.message, drop_checks(at))
    decided = proven or at.state.verdict(current.hash, at.retry) is not None
    drops = drop_checks(at, keep=None if decided else current)
    mine = [pod for pod in at.pods if pod.revision == current.hash and not pod.deleting]
    others = [pod for pod in at.pods if pod.revision != current.hash and not pod.deleting]
    ready = sum(pod.ready for pod in mine)
    if ready < at.spec.replicas or others or len(mine) > at.spec.replicas:
        message = (
            f"{ready} of {at.spec.replicas} pods run template {current.hash[:8]} and are ready"
        )
        return Step(at.state, Phase.ROLLING, Reason.ROLLING_OUT, message, drops)
    message = "every pod runs the current spec"
    return Step(at.state, Phase.DONE, Reason.ROLLOUT_COMPLETE, message, drops)


def _failure(at: Situation, current: Revision) -> tuple[Reason, str] | None:
    """Why the template in force does not work, None as far as is known."""
    found = judged(at, current)
    if found is not None and not found[0].ok:
        return Reason(found[0].reason), found[0].message
    for pod in at.pods:
        if pod.revision != current.hash or pod.deleting or pod.ready:
            continue
        if pod.terminations >= at.settings.crash_limit and pod.last_exit is not None:
            return crash(pod)
        if pod.image_problem and at.state.good and at.now - pod.created_at >= IMAGE_GRACE_SECONDS:
            return Reason.IMAGE_PULL_FAILED, f"{pod.waiting_reason}: {pod.waiting_message}"
    slowest = max(at.settings.rollout_deadline_seconds, at.spec.rollout.startup_timeout_seconds)
    deadline_seconds = slowest * max(1, at.spec.replicas)
    if at.spec.replicas and at.now - current.since >= deadline_seconds:
        return Reason.ROLLOUT_FAILED, f"its pods were not ready within {deadline_seconds:g} s"
    return None


def crash(pod: PodView) -> tuple[Reason, str]:
    """Why a pod's engine ends again and again."""
    times = f"engine of pod {pod.name} ended {pod.terminations} times"
    if pod.last_exit is None:
        return Reason.ENGINE_CRASHED, times
    if pod.last_exit.out_of_memory:
        return Reason.OUT_OF_MEMORY, f"{times}: it used more memory than its limit"
    return Reason.ENGINE_CRASHED, f"{times}, last with: {last_words(pod.last_exit.message)}"
