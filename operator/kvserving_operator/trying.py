"""Which templates have to prove themselves before every pod runs them; pure."""

from kvserving_operator.live import asked
from kvserving_operator.revisions import Revision, RevisionState
from kvserving_operator.situation import Situation
from kvserving_operator.startup import differing
from kvserving_operator.trials.policy import is_safe


def needs_trial(at: Situation, candidate: Revision) -> bool:
    """Whether a template is tried.

    Engines that cannot be asked what they compute are not, nor are clients who have to ask for
    another name.
    """
    current, spec = at.state.current, at.spec
    if spec.rollback_policy_ref is None or at.state.good is None or current is None:
        return False
    if current.contents is None or candidate.contents is None or not spec.replicas:
        return False
    if not (current.plugin and candidate.plugin):
        return False
    plain = is_safe(asked(spec))
    return bool(differing(current.contents, candidate.contents, plain=plain))


def turned_down(at: Situation, candidate: Revision) -> str:
    """What a trial has found wanting in a template; empty where it may be tried."""
    found = at.trials.turned_down_for(candidate.keys, at.retry)
    if found is None:
        return ""
    template = f"template {candidate.hash[:8]} is not tried again before the spec is edited"
    return f"trial {found.trial}, {found.message}; {template}"


def asked_for(at: Situation, *, everything: bool) -> RevisionState:
    """The state in which pods in force are asked for the spec's KV cache, as far as it may be now.

    The way back to 16 bits waits for no trial. All else is tried once the template is settled.
    """
    current = at.state.current
    if current is None or not (everything or is_safe(at.asked)):
        return at.state
    return at.state.with_current(current.model_copy(update={"live": at.asked}))
