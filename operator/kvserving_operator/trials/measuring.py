"""Blocks of time of a trial under way: what guards and the gain compare; pure."""

from collections.abc import Mapping

from kvserving_operator.trials.record import Record
from kvserving_operator.trials.seen import Seen
from kvserving_tuner.trials.alternation import SETTLING_SECONDS, Alternation, arm_of
from kvserving_tuner.trials.blocks import block_of
from kvserving_tuner.trials.machine import Facts, Wish
from kvserving_tuner.trials.progress import Progress, State


def with_block(record: Record, facts: Facts, seen: Seen) -> Record:
    """The record with the block of time that has ended, if one has."""
    progress = record.progress
    if progress.alternation is not None:
        return _with_turn(record, progress.alternation, facts, seen)
    serving = progress.candidates and facts.changed >= set(progress.candidates)
    if not (progress.state is State.RUNNING and serving):
        return record.model_copy(update={"block_from": seen.now})
    if seen.observation is None or facts.blocked:
        return record
    plan = record.plan
    block = block_of(
        seen.observation,
        progress.candidates,
        record.block_from,
        plan.targets,
        weighted=plan.weighted,
    )
    if block is None:
        return record
    return _compared(record, progress, block.numbers, block.end)


def _with_turn(record: Record, alternation: Alternation, facts: Facts, seen: Seen) -> Record:
    """The same where one engine takes turns with itself."""
    progress = record.progress
    if progress.state is not State.RUNNING or not facts.settled:
        return record.model_copy(update={"block_from": seen.now + SETTLING_SECONDS})
    if seen.observation is None or facts.blocked or facts.wish is Wish.PAUSE:
        return record
    found = arm_of(seen.observation, record.block_from, record.plan.targets)
    if found is None:
        return record
    arm, end = found
    if alternation.with_change and not arm.load:
        # Nobody asked anything: the trial waits for requests with the change in force.
        return record.model_copy(update={"block_from": end})
    alternation, numbers = alternation.measured(arm)
    progress = progress.model_copy(update={"alternation": alternation})
    return _compared(record, progress, numbers, end)


def _compared(
    record: Record, progress: Progress, numbers: Mapping[str, float], end: float
) -> Record:
    for name, value in numbers.items():
        criterion = record.plan.of_blocks(name)
        if criterion is not None:
            progress = progress.compared(criterion, [value])
    return record.model_copy(update={"progress": progress, "block_from": end})
