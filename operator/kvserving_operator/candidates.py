"""How many pods a template under trial has, and how many of those in force make room for them.

Pure. Pods are exchanged one after another: a pod in force leaves once a candidate answers in its
place. Where there is no room for the candidate, it leaves before, but never the last one.
"""

from kvserving_operator.observe import PodView
from kvserving_operator.revisions import Candidates, RevisionState
from kvserving_operator.situation import Situation
from kvserving_operator.trials.record import Record
from kvserving_tuner.judge import Cause
from kvserving_tuner.trials.progress import State, Verdict

NO_ROOM_SECONDS = 20.0
"""How long a pod may stay unscheduled before that counts: schedulers need a moment, and what a
leaving pod held becomes free a little later."""
IN_SERVICE = (State.RUNNING, State.APPROVAL)
"""States in which users are with candidates."""


def arranged(at: Situation, state: RevisionState) -> RevisionState:
    """The state with as many pods of either template as there are to be now."""
    record, found = at.trials.running, state.candidates
    tries = record is not None and record.revision and record.progress.state in IN_SERVICE
    if record is None or not tries or (found and found.revision.hash != record.revision):
        kept = None if found is None else _leaving(at, state, found)
        return state.model_copy(update={"candidates": kept})
    if found is None:
        wanted = state.candidate
        if wanted is None or wanted.hash != record.revision:
            # The spec was edited: the trial ends at this look.
            return state
        found = Candidates(revision=wanted)
    return state.model_copy(update={"candidates": _joining(at, record, found)})


def lacks_room(pod: PodView, now: float) -> bool:
    """Whether no node can take a pod."""
    return pod.unschedulable is not None and now - pod.created_at >= NO_ROOM_SECONDS


def _joining(at: Situation, record: Record, found: Candidates) -> Candidates:
    """One candidate more once all that there are answer."""
    replicas = at.spec.replicas
    wanted = record.plan.pods(record.progress.step, max(2, replicas))
    mine, _ = _arms(at)
    ready = sum(pod.ready for pod in mine)
    pods = found.pods + 1 if ready >= found.pods else found.pods
    pods = min(pods, wanted)
    # What leaves will make room by itself.
    leaving = any(pod.deleting for pod in at.pods)
    stuck = not leaving and any(lacks_room(pod, at.now) for pod in mine)
    # Where none may be missing, the candidate waits for room, and its start fails in the end.
    makes_room = stuck and at.spec.rollout.max_unavailable > 0
    freed = max(found.freed, ready + int(makes_room))
    # Room that was made is the candidate's: who left for it does not come back beside it.
    return found.model_copy(update={"pods": pods, "freed": max(0, min(freed, pods, replicas - 1))})


def _leaving(at: Situation, state: RevisionState, found: Candidates) -> Candidates | None:
    """Candidates that still serve in the place of pods in force; those are wanted all at once."""
    replicas, record = at.spec.replicas, at.trials.running
    mine, others = _arms(at)
    ready = sum(pod.ready for pod in mine)
    current = "" if state.current is None else state.current.hash
    stay = sum(pod.ready for pod in others if pod.revision == current)
    answering = ready + sum(pod.ready for pod in others)
    spare = stay + ready - replicas
    if record is not None and record.revision == found.revision.hash and _is_bad(record):
        # What they answer is worse than that others answer later.
        spare = max(spare, answering - (replicas - at.spec.rollout.max_unavailable))
    elif any(lacks_room(pod, at.now) for pod in others):
        least = replicas - max(1, at.spec.rollout.max_unavailable)
        spare = max(spare, int(answering > least))
    pods = min(found.pods, ready) - max(0, spare)
    return found.model_copy(update={"pods": pods, "freed": 0}) if pods > 0 else None


def _is_bad(record: Record) -> bool:
    """Whether users of candidates are shown to be served badly."""
    conclusion = record.progress.conclusion
    return (
        conclusion is not None
        and conclusion.verdict is Verdict.ROLLED_BACK
        and conclusion.reason in (Cause.QUALITY_DROP, Cause.HARD_STOP)
    )


def _arms(at: Situation) -> tuple[list[PodView], list[PodView]]:
    """Candidates and all other pods that are not on their way out."""
    alive = [pod for pod in at.pods if not pod.deleting]
    return [pod for pod in alive if pod.apart], [pod for pod in alive if not pod.apart]
