"""Which tasks a trial asks of which engines at a look, and what their answers say; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from kvserving_kernels.eviction import DEFAULT_SINK_TOKENS, StreamingLLM
from kvserving_operator.live import NO_EVICTION, KVSettings
from kvserving_operator.trials.asking import Ask
from kvserving_operator.trials.policy import SIXTEEN_BITS, is_safe
from kvserving_operator.trials.record import Record
from kvserving_operator.trials.seen import Seen, block_size
from kvserving_operator.trials.stopping import GARBAGE_IN_A_ROW, with_garbage
from kvserving_tuner.judge import HardStop
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.readings import Known
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import LeftOut, Progress, State
from kvserving_tuner.trials.schedule import Stretch
from kvserving_tuner.trials.tasks import (
    Cell,
    cells_of,
    criteria,
    expecting,
    least_tokens,
    lengths,
    paired,
    recorded,
    task_of,
    to_pair,
    to_record,
)

AT_ONCE = 16
"""Tasks that are asked in one go: what is under way when engines are switched is dropped."""
TASKS = "Tasks"
"""Stands for all task probes where none of them can be asked."""


@dataclass(frozen=True)
class TaskSet:
    """Tasks of a trial."""

    known: bool = True
    """Whether it is known yet which tasks there are."""
    cells: tuple[Cell, ...] = ()
    least_tokens: int = 0
    """Tokens that a prompt has to be longer than."""
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    """Probes that cannot be asked at all."""
    too_short: str = ""
    """Why no prompt can be long enough; empty where one can."""
    problem: str = ""
    """What holds the trial."""


@dataclass(frozen=True)
class Left:
    """Numbers of the tasks that are asked next, in both of a trial's stages."""

    to_record: tuple[int, ...] = ()
    """Of engines in 16 bits, before any engine has the change."""
    to_pair: tuple[int, ...] = ()
    """Of engines with the change."""


def tasks_of(record: Record, seen: Seen) -> TaskSet:
    """Tasks of a trial."""
    # Engines of a template are compared with those in force, whatever cache both have.
    pairs = bool(record.revision) or is_safe(record.stable)
    return task_set(record.plan, record.candidate, record.stable, seen, pairs=pairs)


def task_set(
    plan: Plan, candidate: KVSettings, stable: KVSettings, seen: Seen, *, pairs: bool
) -> TaskSet:
    """Tasks that probes ask of these engines; `stable` is what the candidate is compared with.

    `pairs` says whether there are engines that it can be compared with.
    """
    size = block_size(seen)
    if not plan.tasks:
        return TaskSet()
    if seen.probe_set.problem or not seen.runtime:
        return TaskSet(known=False)
    kept = kept_tokens(candidate.eviction, size)
    sizes = lengths(size, seen.max_tokens, kept)
    made_up = [probe for probe in plan.tasks if probe is not Probe.REFERENCES]
    least = least_tokens(size, kept)
    too_short, left_out = "", {}
    if made_up and not sizes:
        too_short = (
            f"prompts of more than {least} tokens (two blocks, and what eviction keeps) do not fit "
            f"a context of {seen.max_tokens}"
        )
        left_out[TASKS] = LeftOut(reason="ProbeSetTooShort", message=too_short)
    if not pairs:
        message = f"engines run {stable}, and answers are compared with those in 16 bits"
        left_out[TASKS] = LeftOut(reason="NoBaseline", message=message)
    cells = cells_of(plan, sizes, seen.probe_set.prompts, paired=pairs)
    problem = ""
    if Probe.REFERENCES in plan.floors and not any(cell.prompts for cell in cells):
        problem = "spec.quality.floors: References: no prompt of spec.quality.probeSet has one"
    elif plan.floors and too_short:
        problem = f"spec.quality.floors: {too_short}"
    evicts = kept > 0 and pairs
    return TaskSet(
        cells=cells,
        least_tokens=least,
        left_out=left_out,
        too_short=too_short if evicts else "",
        problem=problem,
    )


def kept_tokens(eviction: Mapping[str, object], size: int) -> int:
    """Most tokens that a request keeps under an eviction, 0 where it keeps all (eviction.md)."""
    window = eviction.get("window_tokens")
    if eviction == NO_EVICTION or not isinstance(window, int):
        return 0
    sinks = eviction.get("sink_tokens")
    kept = StreamingLLM(sinks if isinstance(sinks, int) else DEFAULT_SINK_TOKENS, window)
    return kept.visible_tokens(size)


def heard(record: Record, tasks: TaskSet, facts: Facts, seen: Seen) -> tuple[Record, Facts, Left]:
    """Record with the answers since the last look, facts that follow, and what is left to ask."""
    if not tasks.known:
        return record, replace(facts, recorded=False, tasks_left=True), Left()
    facts = replace(facts, blocked=facts.blocked or tasks.problem)
    left_out = {**tasks.left_out, **record.progress.left_out}
    progress = record.progress.model_copy(update={"left_out": left_out})
    # Tasks are requests to the engine, and no user's.
    of_tasks = sum(answer.grade is not None for answer in seen.answers)
    facts = replace(facts, finished=max(0.0, facts.finished - of_tasks))
    for answer in seen.answers:
        ask = answer.ask
        is_ours = ask.trial == record.name and ask.cell in tasks.cells
        if answer.error or not is_ours:
            continue
        if ask.candidate is None and answer.baseline is not None:
            progress = recorded(record.plan, progress, tasks.cells, ask.number, answer.baseline)
        elif answer.grade is not None and _still_holds(ask, progress, facts):
            progress = paired(
                record.plan, progress, tasks.cells, ask.number, answer.grade, answer.baseline
            )
            garbage = with_garbage(record.garbage, answer)
            record = record.model_copy(update={"evidence_at": answer.at, "garbage": garbage})
    if record.garbage >= GARBAGE_IN_A_ROW and facts.hard_stop is None:
        facts = replace(facts, hard_stop=HardStop.GARBAGE)
    progress = expecting(record.plan, progress, tasks.cells)
    record = record.model_copy(update={"progress": progress})
    alone = len(seen.pods) == 1 and not record.revision
    missing = to_record(record.plan, progress, tasks.cells, alone=alone)
    # An engine in 16 bits that does not answer now may do so at the next look.
    pairs = to_pair(record.plan, progress, tasks.cells, live=not alone)
    left = Left(tuple(islice(missing, AT_ONCE)), tuple(islice(pairs, AT_ONCE)))
    facts = replace(
        facts,
        recorded=not left.to_record,
        tasks=criteria(record.plan, progress, tasks.cells),
        tasks_left=bool(left.to_pair),
    )
    return record, facts, left


def _still_holds(ask: Ask, progress: Progress, facts: Facts) -> bool:
    """Whether the engines that answered have been what they were asked as."""
    candidate = "" if ask.candidate is None else ask.candidate.name
    baseline = "" if ask.baseline is None else ask.baseline.name
    number_is_new = ask.number >= progress.tasks
    was_candidate = candidate in progress.candidates and candidate in facts.changed
    return number_is_new and was_candidate and baseline not in progress.candidates


def next_asks(
    record: Record, tasks: TaskSet, left: Left, facts: Facts, seen: Seen
) -> tuple[Ask, ...]:
    """The next few tasks, each on the next engines in turn."""
    progress = record.progress
    if facts.wish is Wish.PAUSE or not facts.ready or not tasks.cells:
        return ()
    plain = [name for name in facts.ready if _is_plain(name, seen)]
    if facts.own is not None:
        plain = [name for name in facts.ready if name not in facts.own]
    if progress.state is State.SCREENING and plain:
        return tuple(
            _ask(record, tasks, number, "", plain[number % len(plain)], seen)
            for number in left.to_record
        )
    candidates = [name for name in progress.candidates if name in facts.ready]
    serving = bool(candidates) and facts.changed >= set(candidates)
    probes = serving and progress.schedule.stretch is Stretch.PROBING
    if progress.state is not State.RUNNING or not probes:
        return ()
    others = [name for name in plain if name not in progress.candidates]
    asks = []
    for number in left.to_pair:
        candidate = candidates[number % len(candidates)]
        known = number in progress.recorded or not task_of(tasks.cells, number)[0].paired
        if known or others:
            other = "" if known else others[number % len(others)]
            asks.append(_ask(record, tasks, number, candidate, other, seen))
    return tuple(asks)


def _ask(
    record: Record, tasks: TaskSet, number: int, candidate: str, baseline: str, seen: Seen
) -> Ask:
    cell, place = task_of(tasks.cells, number)
    names = [name for name in (candidate, baseline) if name]
    return Ask(
        trial=record.name,
        number=number,
        cell=cell,
        place=place,
        model=seen.model,
        least_tokens=tasks.least_tokens,
        candidate=seen.targets[candidate] if candidate else None,
        baseline=seen.targets[baseline] if baseline else None,
        recorded=record.progress.recorded.get(number) if candidate else None,
        apart=bool(record.revision),
        busy=any(is_busy(name, seen) for name in names),
    )


def _is_plain(name: str, seen: Seen) -> bool:
    """Whether an engine keeps every token in 16 bits now."""
    state = seen.runtime[name]
    dtypes = (*SIXTEEN_BITS, state.startup.get("dtype"))
    plain = state.effective.kv_cache_dtype in dtypes
    return plain and state.effective.eviction.policy == NO_EVICTION["policy"]


def is_busy(name: str, seen: Seen) -> bool:
    """Whether users have requests there; where it is not known, they have."""
    for engine in seen.observation.engines if seen.observation is not None else ():
        if engine.target == name and isinstance(engine.running, Known):
            waiting = engine.waiting.value if isinstance(engine.waiting, Known) else 0.0
            # A task is a request too.
            return engine.running.value + waiting > 1
    return True
