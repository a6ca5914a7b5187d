"""One look at the trials of a KVServing: what was seen goes in, what is to be done comes out; pure.

Nothing is acted on before it is remembered: a killed operator goes on where it was.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvserving_operator.api.v1alpha1 import KVTrial, RequestedBy
from kvserving_operator.trials.aftermath import after, after_regression
from kvserving_operator.trials.asking import Ask
from kvserving_operator.trials.measuring import with_block
from kvserving_operator.trials.probing import Request
from kvserving_operator.trials.prompt_set import prompts_of, request_of
from kvserving_operator.trials.record import Record, Trials
from kvserving_operator.trials.restart import restart_trial, without_likelihood
from kvserving_operator.trials.seen import Seen, facts_of
from kvserving_operator.trials.select import (
    Wanted,
    next_trial,
    settle,
    spec_trial,
    why_not,
)
from kvserving_operator.trials.task_set import Left, TaskSet, heard, next_asks, tasks_of
from kvserving_operator.trials.watching import look_after
from kvserving_tuner.judge import HardStop
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.trials.facts import Facts
from kvserving_tuner.trials.likelihoods import next_prompts, scored
from kvserving_tuner.trials.machine import advance
from kvserving_tuner.trials.progress import (
    SCREENED,
    Conclusion,
    End,
    State,
    Verdict,
)
from kvserving_tuner.trials.schedule import Stretch


@dataclass(frozen=True)
class Outcome:
    """What follows from one look."""

    trials: Trials
    before: Record | None = None
    """The trial as it was; None where none ran."""
    record: Record | None = None
    """The trial that was looked at; it may just have ended."""
    begun: bool = False
    """Whether the spec asks for it now for the first time: its KVTrial is to be made."""
    regression: str = ""
    """What shows that the quality of what was promoted fell."""
    probes: tuple[Request, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    asks: tuple[Ask, ...] = ()
    found: tuple[KVTrial, ...] = ()
    """KVTrials of the KVServing as they were listed before this look."""

    @property
    def asks_no_more(self) -> bool:
        """Whether what is being asked of engines on trial is to be the last for now."""
        progress = None if self.record is None else self.record.progress
        return progress is not None and progress.schedule.stretch is not Stretch.PROBING


def look(trials: Trials, wanted: Wanted, found: Sequence[KVTrial], seen: Seen) -> Outcome:
    """Settle what needs no trial, begin one, or take the one under way a step on."""
    trials = settle(trials, wanted, seen.now)
    before = record = trials.running
    by_name = {trial.metadata.name: trial for trial in found}
    begun = False
    if record is None:
        record = restart_trial(trials, wanted, seen.start)
        if record is None:
            record = next_trial(trials, wanted, found) or spec_trial(trials, wanted)
        if record is not None and record.requested_by is RequestedBy.SPEC:
            begun = record.name not in by_name
        if record is None:
            return _watch(trials, wanted, seen)
    trial = by_name.get(record.name)
    tasks = tasks_of(record, seen)
    problem = why_not(record, wanted, trial, trials.rejected) if before is None else ""
    too_short = tasks.too_short if record.progress.state is State.PENDING else ""
    if problem or too_short:
        reason = End.NOT_SUPPORTED if problem else End.SET_TOO_SHORT
        message = problem or too_short
        conclusion = Conclusion(verdict=Verdict.FAILED, reason=reason, message=message)
        progress = record.progress.becomes(
            State.FINISHED, conclusion=conclusion, finished_at=seen.now
        )
        record = record.model_copy(update={"progress": progress})
        return Outcome(after(trials, record, seen.now), before, record, begun)
    record, facts = facts_of(record, wanted, trial, seen, is_new=before is None)
    prompts = prompts_of(record.plan, seen)
    record, facts = _with_evidence(record, replace(facts, prompts=len(prompts)), seen)
    record, facts, left = heard(record, tasks, facts, seen)
    facts = replace(facts, blocked=facts.blocked or _failing(record, tasks, left, facts, seen))
    progress = advance(record.plan, record.progress, facts)
    record = record.model_copy(update={"progress": progress})
    if progress.state is State.FINISHED:
        return Outcome(after(trials, record, seen.now), before, record, begun)
    kept = trials.model_copy(update={"running": record})
    probes = _next_probes(record, facts, seen)
    asks = next_asks(record, tasks, left, facts, seen)
    return Outcome(kept, before, record, begun, probes=probes, prompts=prompts, asks=asks)


def _watch(trials: Trials, wanted: Wanted, seen: Seen) -> Outcome:
    """Go on measuring what was promoted."""
    settled, watch = trials.settled, trials.watch
    if settled is None or watch is None or settled.settings != watch.settings:
        return Outcome(trials)
    found = look_after(watch, settled.template, wanted.floors, seen)
    if found.fell:
        regressed = after_regression(trials, watch, found.fell, wanted.engines, seen.now)
        why = regressed.settled.message if regressed.settled else found.fell
        return Outcome(regressed, regression=f"trial {watch.trial}, {why}")
    kept = trials.model_copy(update={"watch": found.watch})
    return Outcome(kept, probes=found.probes, prompts=found.prompts, asks=found.asks)


def _with_evidence(record: Record, facts: Facts, seen: Seen) -> tuple[Record, Facts]:
    """With the pairs and the block of time that were measured since the last look."""
    progress = record.progress
    for pair in seen.pairs:
        kind = pair.request.kind
        number = progress.screened if kind == SCREENED else progress.served
        if pair.error or (pair.request.trial, pair.request.number) != (record.name, number):
            continue
        if pair.unlike:
            record = without_likelihood(record.model_copy(update={"progress": progress}))
            progress = record.progress
            break
        if math.isnan(pair.rise):
            facts = replace(facts, hard_stop=HardStop.NOT_A_NUMBER)
            record = record.model_copy(update={"evidence_at": pair.at})
            break
        progress = scored(record.plan, progress, kind, pair.stratum, [pair.rise])
        record = record.model_copy(update={"evidence_at": pair.at})
    return with_block(record.model_copy(update={"progress": progress}), facts, seen), facts


def _failing(record: Record, tasks: TaskSet, left: Left, facts: Facts, seen: Seen) -> str:
    """Why the probe that is asked next has given nothing so far."""
    if record.failed_prompt and next_prompts(record.plan, record.progress, facts) is not None:
        return record.failed_prompt
    if record.failed_task and next_asks(record, tasks, left, facts, seen):
        return record.failed_task
    return ""


def _next_probes(record: Record, facts: Facts, seen: Seen) -> tuple[Request, ...]:
    """The next few pairs, each on the next pod in turn."""
    chosen = next_prompts(record.plan, record.progress, facts)
    if chosen is None or not record.plan.likelihood:
        return ()
    kind, numbers = chosen
    pods = facts.ready
    if kind != SCREENED:
        pods = tuple(name for name in facts.ready if name in record.progress.candidates)
    # The same engine cannot score as if it had been started from another template.
    plain = [name for name in facts.ready if name not in pods] if record.revision else []
    if record.revision and not plain:
        return ()
    return tuple(
        request_of(record.name, record.candidate, kind, number, pods, seen, plain)
        for number in numbers
    )
