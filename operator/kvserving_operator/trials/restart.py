"""Trials of a pod template: which one runs, and what becomes of the pods that it starts; pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvserving_operator.api.v1alpha1 import ChangeSpec, KVRollbackPolicySpec, RequestedBy
from kvserving_operator.candidates import lacks_room
from kvserving_operator.hashing import content_hash
from kvserving_operator.observe import PodView, last_words
from kvserving_operator.revisions import Revision
from kvserving_operator.startup import described, differing, key
from kvserving_operator.trials.policy import fallback_of, is_safe, plan_of
from kvserving_operator.trials.record import Record, Trials
from kvserving_operator.trials.select import NAME_HASH, NAME_LIMIT, Wanted
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import SERVED, LeftOut

IMAGE_SECONDS = 120.0
"""How long an image may fail to arrive: registries have short outages."""
CONFIG_SECONDS = 20.0
MEMORY_ATTEMPTS = 6
"""Starts of an engine that finds too little memory on its GPU: what a leaving engine held may come
free late. With the kubelet's pauses these take five minutes."""
NO_MEMORY = ("out of memory", "OutOfMemoryError", "Free memory on device")
"""What engines say of memory that they do not get, in PyTorch's words and in vLLM's."""
CHANGE_LIMIT = 1024
OTHER_TOKENS = LeftOut(
    reason="OtherTokenizer",
    message="engines with the change cut texts into other tokens, so that likelihoods of the two "
    "cannot be compared",
)


@dataclass(frozen=True)
class Start:
    """A template that is to be tried, and how its pods may start."""

    revision: Revision
    current: Revision
    replicas: int
    crash_limit: int
    most_seconds: float
    """Longest time from a pod's creation until it answers."""
    leaving: bool = False
    """Whether pods are on their way out, whose room will be free."""


def restart_trial(trials: Trials, wanted: Wanted, start: Start | None) -> Record | None:
    """The trial of the template that is to be tried; None where there is none."""
    settled, policy = trials.settled, wanted.policy
    if start is None or policy is None or settled is None or trials.running is not None:
        return None
    revision = start.revision
    return Record(
        name=_name(wanted, start),
        requested_by=RequestedBy.SPEC,
        asked=wanted.asked,
        template=wanted.template,
        stable=settled.settings,
        candidate=settled.settings,
        fallback=fallback_of(policy),
        plan=_plan(wanted, policy, trials),
        reject_for_seconds=policy.memory.reject_for_seconds,
        split_by=policy.ab.split_by,
        revision=revision.hash,
        base=revision.base_hash,
        content=key(revision.contents or {}),
        start_up=change_of(start, plain=is_safe(settled.settings)),
        retry=wanted.retry,
    )


def change_of(start: Start, *, plain: bool) -> str:
    """What is new in a template, in words."""
    before, after = start.current.contents or {}, start.revision.contents or {}
    return described(before, after, differing(before, after, plain=plain))[:CHANGE_LIMIT]


def change_spec(record: Record, start: Start) -> ChangeSpec:
    """The change as its KVTrial has it."""
    before, after = start.current.contents or {}, start.revision.contents or {}
    values: dict[str, str] = {"start_up": record.start_up}
    for field, name in (("engine.image", "engine_image"), ("model.revision", "model_revision")):
        if field in after and before.get(field) != after[field]:
            values[name] = after[field]
    return ChangeSpec.model_validate(values)


def without_likelihood(record: Record) -> Record:
    """The trial where likelihoods say nothing: tasks have to show what the change costs."""
    progress = record.progress
    kept = {
        n: each for n, each in progress.evidence.items() if n not in progress.likelihood(SERVED)
    }
    left_out = {**progress.left_out, Probe.LIKELIHOOD.value: OTHER_TOKENS}
    return record.model_copy(
        update={
            "plan": record.plan.model_copy(update={"likelihood": False}),
            "progress": progress.model_copy(update={"evidence": kept, "left_out": left_out}),
        }
    )


def start_failure(record: Record, pods: Iterable[PodView], start: Start, now: float) -> str:
    """Why no engine comes up from the template; empty while one may."""
    for pod in pods:
        if pod.revision != record.revision or not pod.apart or pod.ready:
            continue
        if pod.name in record.progress.candidates:
            # It was up before: that it ended is for the judge.
            continue
        problem = _problem(pod, start, now)
        if problem:
            return f"pod {pod.name}: {problem}"
    return ""


def no_room(record: Record, pods: Iterable[PodView], start: Start, now: float) -> str:
    """Why the only engine cannot have a candidate beside it; empty where it can."""
    if start.replicas != 1 or start.leaving:
        return ""
    stuck = next((p for p in pods if p.revision == record.revision and lacks_room(p, now)), None)
    if stuck is None:
        return ""
    return f"there is one engine and no room for a second one ({stuck.unschedulable})"


def _problem(pod: PodView, start: Start, now: float) -> str:
    age = now - pod.created_at
    if pod.image_problem and age >= IMAGE_SECONDS:
        return f"{pod.waiting_reason}: {pod.waiting_message}"
    if pod.config_problem and age >= CONFIG_SECONDS:
        return f"{pod.waiting_reason}: {pod.waiting_message}"
    ended = pod.last_exit
    if ended is not None and pod.terminations:
        late = not ended.out_of_memory and any(words in ended.message for words in NO_MEMORY)
        limit = max(start.crash_limit, MEMORY_ATTEMPTS) if late else start.crash_limit
        if pod.terminations >= limit:
            words = last_words(ended.message)
            if ended.out_of_memory:
                words = "it used more memory than its limit"
            return f"its engine ended {pod.terminations} times, last with: {words}"
    if age >= start.most_seconds:
        why = f": {pod.unschedulable}" if pod.unschedulable else ""
        return f"it was not ready within {start.most_seconds:g} s{why}"
    return ""


def _plan(wanted: Wanted, policy: KVRollbackPolicySpec, trials: Trials) -> Plan:
    settings = trials.settled.settings if trials.settled is not None else wanted.asked
    plan = plan_of(policy, settings, wanted.floors, None, wanted.slo)
    plan = plan.with_weights() if wanted.routed else plan
    # An engine cannot score as if it was another one: users are the first to meet the change.
    likelihood = Probe.LIKELIHOOD in policy.quality.probes
    update = {"restarts": True, "screened": False, "likelihood": likelihood}
    return plan.model_copy(update=update)


def _name(wanted: Wanted, start: Start) -> str:
    """Name of the trial: the same after a restart of the operator, so it is made once."""
    change = {
        "from": wanted.template,
        "to": start.revision.hash,
        "generation": wanted.generation,
        "retry": wanted.retry,
    }
    ending = f"-{content_hash(change)[:NAME_HASH]}"
    return wanted.name[: NAME_LIMIT - len(ending)] + ending
