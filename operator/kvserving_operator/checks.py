"""Check pods of a new template: when one is made, what its end means, when it goes. Pure."""

from kvserving_operator.actions import Action, Announce, CreateOnce, Delete
from kvserving_operator.api.reasons import Reason
from kvserving_operator.kinds import Kind
from kvserving_operator.observe import CheckState, CheckView, last_words, refusal
from kvserving_operator.render.preflight import preflight_pod
from kvserving_operator.revisions import Revision, Verdict
from kvserving_operator.situation import Situation

BLOCKED_GRACE_SECONDS = 20.0
"""How long a check pod may stay unscheduled before that counts: schedulers need a moment."""
CHECKING = "the engine's arguments are being checked before any pod is touched"
SKIPPED = "PreflightSkipped"


def refusal_of(at: Situation, revision: Revision, reason: Reason, message: str) -> Verdict:
    """Give the verdict that keeps a template from being tried until the user asks again."""
    return Verdict(
        template_hash=revision.hash, ok=False, reason=reason.value, message=message, retry=at.retry
    )


def judge(
    at: Situation, revision: Revision, pod: CheckView
) -> tuple[Verdict, Announce | None] | None:
    """Give the verdict of a check pod with what to announce; None while it is out."""
    age_seconds = at.now - pod.created_at
    timed_out = age_seconds >= at.settings.preflight_timeout_seconds
    if pod.state is CheckState.FINISHED and pod.exit is not None:
        if pod.exit.code == 0:
            passed = Verdict(template_hash=revision.hash, ok=True, reason="Passed", message="")
            return passed, None
        sentence = refusal(pod.exit.message)
        if sentence is not None:
            return _refuse(at, revision, Reason.PREFLIGHT_FAILED, sentence)
        return _skip(revision, f"{pod.exit.reason}: {last_words(pod.exit.message)}")
    if pod.missing_claim:
        # Engines would wait for it just as long: it goes on once the claim is there.
        return None
    if pod.config_problem and age_seconds >= BLOCKED_GRACE_SECONDS:
        problem = f"{pod.waiting_reason}: {pod.waiting_message}"
        return _refuse(at, revision, Reason.PREFLIGHT_FAILED, problem)
    if timed_out and pod.image_problem and at.state.current is not None:
        problem = f"{pod.waiting_reason}: {pod.waiting_message}"
        return _refuse(at, revision, Reason.IMAGE_PULL_FAILED, problem)
    if timed_out:
        return _skip(revision, f"no answer within {at.settings.preflight_timeout_seconds:g} s")
    if pod.unschedulable and age_seconds >= BLOCKED_GRACE_SECONDS:
        return _skip(revision, f"its pod cannot be scheduled: {pod.unschedulable}")
    return None


def judged(at: Situation, revision: Revision) -> tuple[Verdict, Announce | None] | None:
    """Give the verdict on a template by its check pod; None while there is no pod or no answer."""
    pod = check_pod(at, revision)
    return judge(at, revision, pod) if pod else None


def _refuse(
    at: Situation, revision: Revision, reason: Reason, message: str
) -> tuple[Verdict, Announce]:
    return refusal_of(at, revision, reason, message), Announce(reason.value, message, warning=True)


def _skip(revision: Revision, why: str) -> tuple[Verdict, Announce]:
    """A check that cannot be made must not keep pods from changing."""
    verdict = Verdict(template_hash=revision.hash, ok=True, reason=SKIPPED, message=why)
    message = f"the engine's arguments could not be checked before the roll-out: {why}"
    return verdict, Announce(SKIPPED, message, warning=True)


def progress(pod: CheckView) -> tuple[Reason, str]:
    """Give what a check pod that has not answered yet is doing."""
    if pod.image_problem:
        return Reason.IMAGE_PULL_FAILED, f"{pod.waiting_reason}: {pod.waiting_message}"
    if pod.missing_claim:
        return Reason.UNSCHEDULABLE, f"the engine's pods would wait for ever: {pod.unschedulable}"
    return Reason.PREFLIGHT_RUNNING, CHECKING


def check_pod(at: Situation, revision: Revision) -> CheckView | None:
    """Find the check pod of a template."""
    name = at.ref.preflight_pod(revision.hash)
    return next((check for check in at.checks if check.name == name), None)


def new_check(at: Situation, revision: Revision) -> CreateOnce:
    """Give the action that starts a template's check."""
    return CreateOnce(
        preflight_pod(
            at.ref,
            revision.template,
            at.settings.preflight_memory,
            at.settings.preflight_timeout_seconds,
        )
    )


def drop_checks(at: Situation, keep: Revision | None = None) -> tuple[Action, ...]:
    """Remove check pods, except the one of a template that is still being judged."""
    kept = at.ref.preflight_pod(keep.hash) if keep else ""
    return tuple(Delete(Kind.Pod, pod.name, pod.uid) for pod in at.checks if pod.name != kept)
