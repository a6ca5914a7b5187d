"""Blocks of time of a trial under way: what guards and the gain compare; pure."""

from collections import Counter

from kvserving_operator.trials.record import Record
from kvserving_operator.trials.seen import Seen
from kvserving_tuner.trials.alternation import SETTLING_SECONDS, Alternation, arm_of
from kvserving_tuner.trials.blocks import Block, block_of
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.plan import Guard
from kvserving_tuner.trials.progress import LeftOut, Progress, State

NOT_COUNTED = LeftOut(
    reason="NotCounted",
    message="an engine exports neither http_requests_total of /v1 nor requests that finished with "
    "an error",
)


def with_block(record: Record, facts: Facts, seen: Seen) -> Record:
    """The record with the block of time that has ended, if one has."""
    record = _with_own_requests(record, seen)
    progress = record.progress
    if progress.alternation is not None:
        return _with_turn(record, progress.alternation, facts, seen)
    serving = progress.candidates and facts.changed >= set(progress.candidates)
    if not (progress.state is State.RUNNING and serving):
        rested = progress.model_copy(update={"rested": False})
        return _begin(record.model_copy(update={"progress": rested}), seen.now)
    if seen.observation is None or facts.blocked:
        return record
    plan = record.plan
    block = block_of(
        seen.observation,
        progress.candidates,
        record.block_from,
        plan.slo,
        weighted=plan.weighted,
        most_failed=plan.most_failed,
        own_failures=record.own_failures,
        rested=progress.rested,
    )
    if block is None:
        return record
    progress = progress.model_copy(update={"rested": block.rested})
    return _compared(record, progress, block)


def _with_turn(record: Record, alternation: Alternation, facts: Facts, seen: Seen) -> Record:
    """The same where one engine takes turns with itself."""
    progress = record.progress
    if progress.state is not State.RUNNING or not facts.settled:
        return _begin(record, seen.now + SETTLING_SECONDS)
    if seen.observation is None or facts.blocked or facts.wish is Wish.PAUSE:
        return record
    plan = record.plan
    found = arm_of(seen.observation, record.block_from, plan.slo, record.own_failures)
    if found is None:
        return record
    arm, end = found
    if alternation.with_change and arm.idle:
        # The trial waits for requests with the change in force.
        return _begin(record, end)
    alternation, numbers = alternation.measured(arm, plan.slo, plan.most_failed)
    progress = progress.model_copy(update={"alternation": alternation})
    return _compared(record, progress, Block(end, numbers, arm.outcomes is not None))


def _compared(record: Record, progress: Progress, block: Block) -> Record:
    if Guard.ERRORS in record.plan.guards:
        progress = _with_errors_guard(progress, block)
    for name, value in block.numbers.items():
        criterion = record.plan.of_blocks(name)
        if criterion is not None:
            progress = progress.compared(criterion, [value])
    return _begin(record.model_copy(update={"progress": progress}), block.end)


def _with_errors_guard(progress: Progress, block: Block) -> Progress:
    """Say so where engines do not tell of failed requests: the guard is not kept, it is not there.

    One gap does not undo what was seen before.
    """
    if block.tells_failures:
        return progress.takes_in(Guard.ERRORS)
    if Guard.ERRORS in progress.evidence:
        return progress
    return progress.leaves_out(Guard.ERRORS, NOT_COUNTED)


def _begin(record: Record, at: float) -> Record:
    """With the next block of time beginning."""
    return record.model_copy(update={"block_from": at, "own_failures": {}})


def _with_own_requests(record: Record, seen: Seen) -> Record:
    """With the trial's own requests that engines have answered or failed since the last look."""
    failed = Counter(pod for answer in seen.answers for pod in answer.failed)
    answered = Counter(
        pod for answer in seen.answers if not answer.error for pod in answer.ask.engines
    )
    if not failed and not answered:
        return record
    return record.model_copy(
        update={
            "own_failures": Counter(record.own_failures) + failed,
            "own_tasks": Counter(record.own_tasks) + answered,
        }
    )
