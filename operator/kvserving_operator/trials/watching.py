"""One look at what was promoted: what probes have said since the last one, and what is asked next.

Pure. A probe that fails, or that nobody can answer, holds the watch and says nothing of quality.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvserving_operator.live import KVSettings, differences
from kvserving_operator.trials.asking import Ask
from kvserving_operator.trials.probing import Request
from kvserving_operator.trials.prompt_set import prompts_of, request_of
from kvserving_operator.trials.seen import Seen, failure, ready_pods, same_weights
from kvserving_operator.trials.task_set import TaskSet, is_busy, task_set
from kvserving_operator.trials.watch import Watch
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.probes.prompts import Prompt
from kvserving_tuner.trials.watched import WATCHED, fallen, graded, next_task, scored

NO_NUMBERS = "the engine gives likelihoods that are no numbers"
REPLACED = (
    "tasks are not compared with 16 bits any more, as pods of another template or with other "
    "weights have replaced those that answered in 16 bits"
)


@dataclass(frozen=True)
class Watching:
    """What follows from one look."""

    watch: Watch
    fell: str = ""
    """What shows that quality fell; empty while nothing does."""
    probes: tuple[Request, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    asks: tuple[Ask, ...] = ()


def look_after(watch: Watch, template: str, floors: Mapping[Probe, float], seen: Seen) -> Watching:
    """Take in what was measured, and ask for what is due."""
    watch = watch.under(template, same_weights(seen), floors)
    pods = tuple(n for n in ready_pods(seen) if not differences(watch.settings, seen.runtime[n]))
    # Answers in 16 bits were those of engines without the change, so all cells have pairs.
    tasks = task_set(watch.plan, watch.settings, KVSettings(), seen, pairs=True)
    watch = _with_answers(_with_pairs(watch, seen), tasks, pods, seen)
    fell = NO_NUMBERS if watch.broken else fallen(watch.plan, watch.watched)
    if fell:
        return Watching(watch, fell)
    problem = seen.probe_set.problem
    if not pods:
        problem = problem or f"no engine that answers reports {watch.settings}"
    watch = watch.model_copy(update={"note": _note(watch, tasks, problem)})
    if problem:
        return Watching(watch)
    probes: tuple[Request, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    if watch.asks(seen.now):
        prompts = prompts_of(watch.plan, seen)
        number = watch.number % len(prompts)
        probes = (request_of(watch.trial, watch.settings, WATCHED, number, pods, seen),)
        watch = watch.model_copy(update={"asked_at": seen.now})
    asks = _asks(watch, tasks, pods, seen)
    if asks:
        watch = watch.model_copy(update={"task_asked_at": seen.now})
    return Watching(watch, probes=probes, prompts=prompts, asks=asks)


def _with_pairs(watch: Watch, seen: Seen) -> Watch:
    """With the likelihoods of prompts."""
    for pair in seen.pairs:
        if (pair.request.trial, pair.request.kind) != (watch.trial, WATCHED):
            continue
        if not pair.error and math.isnan(pair.rise):
            return watch.model_copy(update={"broken": True})
        update: dict[str, object] = {"failed_prompt": failure(pair)}
        if not pair.error:
            update["watched"] = scored(watch.plan, watch.watched, pair.stratum, pair.rise)
            update["number"] = watch.number + 1
        watch = watch.model_copy(update=update)
    return watch


def _with_answers(watch: Watch, tasks: TaskSet, pods: tuple[str, ...], seen: Seen) -> Watch:
    """With the grade of the task that was asked last."""
    for answer in seen.answers:
        ask = answer.ask
        if ask.trial != watch.asker or ask.candidate is None:
            continue
        took = max(0.0, answer.at - watch.task_asked_at)
        update: dict[str, object] = {
            "failed_task": failure(answer),
            "task_seconds": took,
        }
        asked = next_task(watch.plan, watch.watched, tasks.cells)
        # What was asked is asked anew where it is not the same any more, or the engine is not.
        same = asked is not None and (asked.cell, asked.place) == (ask.cell, ask.place)
        if asked is not None and same and answer.grade is not None and ask.candidate.name in pods:
            update["watched"] = graded(watch.plan, watch.watched, asked, answer.grade)
        watch = watch.model_copy(update=update)
    return watch


def _asks(watch: Watch, tasks: TaskSet, pods: tuple[str, ...], seen: Seen) -> tuple[Ask, ...]:
    """The next task, on the next pod in turn, where it is due."""
    if not watch.asks_task(seen.now):
        return ()
    asked = next_task(watch.plan, watch.watched, tasks.cells)
    if asked is None:
        return ()
    name = pods[asked.number % len(pods)]
    return (
        Ask(
            trial=watch.asker,
            number=asked.number,
            cell=asked.cell,
            place=asked.place,
            model=seen.model,
            least_tokens=tasks.least_tokens,
            candidate=seen.targets[name],
            recorded=asked.grade,
            busy=is_busy(name, seen),
        ),
    )


def _note(watch: Watch, tasks: TaskSet, problem: str) -> str:
    """What holds the watch, or a part of it."""
    parts = (watch.failed_prompt, watch.failed_task, tasks.problem or tasks.too_short)
    found = [problem] if problem else [part for part in parts if part]
    if found:
        return f"holds: {'; '.join(found)}"
    return REPLACED if watch.watched.baselines and not watch.watched.compares else ""
