"""What is seen of engines at one look, as the trial's machine wants to know it; pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kvserving_operator.api.v1alpha1 import KVTrial, RequestedBy
from kvserving_operator.live import (
    Refusal,
    current_refusals,
    differences,
    offered,
    offers_of,
    why_not_offered,
)
from kvserving_operator.observe import PodView
from kvserving_operator.trials.asking import Answer
from kvserving_operator.trials.probe_set import ProbeSet
from kvserving_operator.trials.probing import Pair
from kvserving_operator.trials.record import Record
from kvserving_operator.trials.restart import Start, no_room, start_failure
from kvserving_operator.trials.select import Wanted
from kvserving_operator.trials.stopping import end_of, is_mute
from kvserving_tuner.aliases import SPECS, Quantity
from kvserving_tuner.judge import HardStop, Split
from kvserving_tuner.observation import Observation
from kvserving_tuner.readings import Known, total
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.sources.base import EngineTarget
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.plan import Guard, Plan

UNKNOWN_BLOCK_SIZE = 128
GUARDED = {Guard.TTFT: Quantity.TTFT, Guard.TPOT: Quantity.TPOT}
"""What guards rest on beside what every observation has to have."""
FINISHED_TOTAL = "finished"
"""Name of the observation's counter of finished requests."""


@dataclass(frozen=True)
class Seen:
    """Engines at one look."""

    pods: tuple[PodView, ...]
    """Those that are not on their way out."""
    runtime: Mapping[str, RuntimeState]
    targets: Mapping[str, EngineTarget]
    refusals: tuple[Refusal, ...]
    observation: Observation | None
    pairs: tuple[Pair, ...]
    answers: tuple[Answer, ...]
    steady: bool
    """Whether no pods are being replaced."""
    probe_set: ProbeSet
    model: str
    max_tokens: int
    now: float
    start: Start | None = None
    """The template that is to be tried, if one is."""
    split: Split | None = None
    """Requests of both arms where a route's weight is in force."""
    probing: bool = False
    """Whether a probe or a task is under way."""
    unanswered_seconds: float = 0.0
    """For how long the probe that is under way has not been answered."""


def ready_pods(seen: Seen) -> tuple[str, ...]:
    """Pods that answer completions and can be asked, by name."""
    return tuple(sorted(pod.name for pod in seen.pods if pod.ready and pod.name in seen.runtime))


def weights_of(seen: Seen, names: Iterable[str] | None = None) -> frozenset[str]:
    """Hashes of the weights of these pods, or of all that answer, of engines that tell them."""
    chosen = ready_pods(seen) if names is None else names
    told = (seen.runtime[name].startup.get("weights") for name in chosen)
    return frozenset(each for each in told if isinstance(each, str))


def same_weights(seen: Seen) -> str:
    """Hash of the weights that all of them have; empty where they differ or do not tell."""
    found = weights_of(seen)
    return next(iter(found)) if len(found) == 1 else ""


def block_size(seen: Seen) -> int:
    """Tokens of a block, the most where engines differ."""
    sizes = [state.capacity.block_size or 0 for state in seen.runtime.values()]
    return max(sizes, default=0) or UNKNOWN_BLOCK_SIZE


def facts_of(
    record: Record, wanted: Wanted, trial: KVTrial | None, seen: Seen, *, is_new: bool
) -> tuple[Record, Facts]:
    """Record with what was counted, and facts for the machine but for the evidence."""
    ready = ready_pods(seen)
    by_name = {pod.name: pod for pod in seen.pods}
    has = frozenset(n for n in ready if record.has_change(by_name[n], seen.runtime[n]))
    containers = {pod.name: pod.container_id for pod in seen.pods}
    candidates = record.progress.candidates
    # One that was started for the trial stays a candidate, whether it answers now or not.
    watched = by_name if record.revision else candidates
    ended = [
        name
        for name, container in record.containers.items()
        if name in watched
        and (
            containers.get(name, container) != container
            or (record.revision and not by_name[name].running)
        )
    ]
    known = {
        **{name: c for name, c in record.containers.items() if name in watched},
        **{name: containers[name] for name in has if name in candidates and name not in ended},
    }
    finished, counted = _finished(record, seen, has)
    offers = [offers_of(seen.runtime[name]) for name in ready]
    unable = [
        why_not_offered(record.candidate, each)
        for each in offers
        if not offered(record.candidate, each)
    ]
    # A note that an engine is being asked is no refusal: the operator may have ended over it.
    key = record.candidate.key(record.name)
    refusal = next(iter(current_refusals(seen.refusals, seen.pods, key)), None)
    # Other weights may be the very change.
    weights = "" if record.revision else same_weights(seen)
    reloaded = bool(record.weights and weights) and weights != record.weights
    other = reloaded or _is_overtaken(record, wanted)
    replaced = record.progress.conclusion is None and other
    by_spec = record.requested_by is RequestedBy.SPEC
    still_wanted = by_spec and (bool(record.revision) or wanted.asked == record.asked)
    update = {
        "containers": known,
        "weights": record.weights or weights,
        "finished": counted,
        "again": record.again or (replaced and still_wanted),
        "retry": wanted.retry,
        "failed_prompt": record.failed_prompt,
        "failed_task": record.failed_task,
    }
    for pair in seen.pairs:
        if pair.request.trial == record.name:
            update["failed_prompt"] = failure(pair)
    for answer in seen.answers:
        if answer.ask.trial == record.name:
            update["failed_task"] = failure(answer)
    hard_stop = end_of(seen.pods, ended)
    if hard_stop is None and is_mute(record, seen.observation, has):
        hard_stop = HardStop.NO_TOKENS
    record = record.model_copy(update=update)
    facts = Facts(
        now=seen.now,
        ready=ready,
        changed=has,
        settled=_settled(record, wanted, seen),
        own=has if record.revision else None,
        replicas=0 if seen.start is None else seen.start.replicas,
        unstartable=_start_failure(record, seen),
        no_room=_no_room(record, seen),
        steady=seen.steady,
        offered=bool(record.revision) or not unable,
        unoffered=unable[0] if unable else "",
        finished=finished,
        probing=seen.probing,
        in_flight=_sum(seen, candidates, "running", "waiting"),
        queue=_mean(seen, candidates, "waiting"),
        others_queue=_mean(seen, [n for n in ready if n not in candidates], "waiting"),
        blocked=_blocked(record, has, seen),
        unanswered_seconds=seen.unanswered_seconds,
        refused="" if refusal is None else f"pod {refusal.pod}: {refusal.message}",
        split=seen.split,
        hard_stop=hard_stop,
        superseded=_superseded(record, wanted, trial, is_new=is_new, reloaded=reloaded),
        wish=Wish.RUN if trial is None else Wish(trial.spec.control.value),
    )
    return record, facts


def _superseded(
    record: Record, wanted: Wanted, trial: KVTrial | None, *, is_new: bool, reloaded: bool
) -> str:
    if not record.revision and wanted.asked != record.asked:
        return f"spec.kvCache was edited to {wanted.asked}"
    if record.revision and wanted.tries != record.revision:
        return "the spec was edited, and asks for another template"
    if not record.revision and wanted.tries:
        return "the spec was edited, and engines with other start-up settings are tried first"
    if wanted.template != record.template:
        return "the spec was edited, and engines with other start-up settings replace these"
    if reloaded:
        return "engines have loaded other weights, which nothing was measured of"
    # A new one's object is made after this look.
    if trial is None and not is_new and record.progress.looked_at is not None:
        return "its KVTrial was deleted"
    return ""


def _is_overtaken(record: Record, wanted: Wanted) -> bool:
    """Whether other pods are to take the place of those that it is about."""
    return wanted.template != record.template or wanted.tries != record.revision


def _settled(record: Record, wanted: Wanted, seen: Seen) -> bool:
    """Whether every pod that serves reports what it is to have; others get it before they serve.

    A template is settled once it is in force, or its pods are gone.
    """
    if record.ready_for_all:
        # Where the spec asks for another one by now, that one has its own trial.
        return wanted.template == record.revision or wanted.tries != record.revision
    if record.revision:
        return not wanted.apart and not any(pod.apart for pod in seen.pods)
    return all(
        pod.name in seen.runtime
        and not differences(record.settings_of(pod.name), seen.runtime[pod.name])
        for pod in seen.pods
        if pod.ready
    )


def _finished(record: Record, seen: Seen, has: frozenset[str]) -> tuple[float, dict[str, float]]:
    """Requests that candidates have finished since the last count, and the counts."""
    if seen.observation is None:
        return 0.0, dict(record.finished)
    new, counted = 0.0, {}
    for engine in seen.observation.engines:
        total = engine.totals.get(FINISHED_TOTAL)
        if engine.target not in has or not isinstance(total, Known):
            continue
        before = record.finished.get(engine.target)
        # A counter that went back is that of another process.
        new += max(0.0, total.value - before) if before is not None else 0.0
        counted[engine.target] = total.value
    return new, counted


def _sum(seen: Seen, names: Collection[str], *gauges: str) -> float | None:
    """Sum of gauges of these engines now; None where one of them is not known."""
    engines = () if seen.observation is None else seen.observation.engines
    known = [each for each in engines if each.target in names]
    if not known or len(known) < len(names):
        return None
    found = total(getattr(each, name) for each in known for name in gauges)
    return found.value if isinstance(found, Known) else None


def _mean(seen: Seen, names: Collection[str], gauge: str) -> float | None:
    """Mean of a gauge over these engines now."""
    found = _sum(seen, names, gauge)
    return None if found is None else found / len(names)


def failure(measured: Pair | Answer) -> str:
    """Why a probe could not be measured; empty where it was."""
    if not measured.error:
        return ""
    return ("ProbeSetTooShort: " if measured.too_short else "probe: ") + measured.error


def _start_failure(record: Record, seen: Seen) -> str:
    if not record.revision or seen.start is None:
        return ""
    return start_failure(record, seen.pods, seen.start, seen.now)


def _no_room(record: Record, seen: Seen) -> str:
    if not record.revision or seen.start is None:
        return ""
    return no_room(record, seen.pods, seen.start, seen.now)


def _blocked(record: Record, has: frozenset[str], seen: Seen) -> str:
    plan = record.plan
    if seen.probe_set.problem:
        return seen.probe_set.problem
    arms: list[Collection[str]] = [ready_pods(seen)]
    if record.revision:
        arms = [has, [name for name in ready_pods(seen) if name not in has]]
        if not arms[1]:
            return "no engine without the change answers"
    if any(len(weights_of(seen, arm)) > 1 for arm in arms):
        return "engines have loaded different weights under one name"
    if seen.observation is None:
        return ""
    if seen.observation.blocking():
        return seen.observation.blocking()[0].message
    return _unguarded(plan, seen.observation)


def _unguarded(plan: Plan, observation: Observation) -> str:
    """Which metric is missing without which users of the change are not looked after."""
    needed = [Quantity.FINISHED, *(GUARDED[guard] for guard in plan.guards if guard in GUARDED)]
    for engine in observation.engines:
        for quantity in needed:
            # One that exports nothing at all is a problem of the observation.
            if engine.names and quantity.value not in engine.names:
                tried = ", ".join(alias.name for alias in SPECS[quantity].aliases)
                return f"{engine.target}: no metric for {quantity}: none of {tried}"
    return ""
