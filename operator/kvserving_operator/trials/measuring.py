"""Blocks of time of a trial under way: what guards and the gain compare; pure.

Failed requests are compared in all of them, and everything else in those alone in which no engine
with the change was probed.
"""

from collections import Counter
from collections.abc import Mapping

from kvserving_operator.trials.record import Record
from kvserving_operator.trials.seen import Seen
from kvserving_tuner.observation import Observation
from kvserving_tuner.trials.alternation import SETTLING_SECONDS, Alternation, arm_of
from kvserving_tuner.trials.blocks import block_of
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
    return _with_quiet_block(_with_any_block(record, seen.observation), seen.observation)


def _with_any_block(record: Record, observation: Observation) -> Record:
    """With the failed requests of a block, probed or not."""
    plan, progress = record.plan, record.progress
    block = block_of(
        observation,
        progress.candidates,
        record.block_from,
        most_failed=plan.most_failed,
        own_failures=record.own_failures,
    )
    if block is None:
        return record
    if not progress.schedule.is_quiet:
        progress = progress.model_copy(update={"schedule": progress.schedule.with_probed_block()})
    failures = {name: each for name, each in block.numbers.items() if name == Guard.ERRORS}
    record = _compared(record, progress, failures, tells_failures=block.tells_failures)
    return _begin(record, block.end)


def _with_quiet_block(record: Record, observation: Observation) -> Record:
    """With all else of a block in which no candidate was probed."""
    plan, progress = record.plan, record.progress
    if not progress.schedule.is_quiet:
        rested = progress.model_copy(update={"rested": False})
        return record.model_copy(update={"progress": rested})
    block = block_of(
        observation,
        progress.candidates,
        progress.schedule.since,
        plan.slo,
        weighted=plan.weighted,
        rested=progress.rested,
    )
    if block is None:
        return record
    schedule = progress.schedule.with_quiet_block(block.end)
    progress = progress.model_copy(update={"rested": block.rested, "schedule": schedule})
    numbers = {name: each for name, each in block.numbers.items() if name != Guard.ERRORS}
    return _compared(record, progress, numbers)


def _with_turn(record: Record, alternation: Alternation, facts: Facts, seen: Seen) -> Record:
    """The same where one engine takes turns with itself."""
    progress = record.progress
    if progress.state is not State.RUNNING or not facts.settled:
        return _begin(record, seen.now + SETTLING_SECONDS)
    if seen.observation is None or facts.blocked or facts.wish is Wish.PAUSE:
        return record
    plan, schedule = record.plan, progress.schedule
    probed = alternation.with_change and not schedule.is_quiet
    since = record.block_from if probed else max(record.block_from, schedule.since)
    found = arm_of(seen.observation, since, plan.slo, record.own_failures)
    if found is None:
        return record
    arm, end = found
    if probed:
        # Nothing but its failures is compared with a turn in which nobody probes.
        update = {
            "alternation": alternation.while_probed(arm), "schedule": schedule.with_probed_block()
        }  # fmt: skip
        probing = progress.model_copy(update=update)
        return _begin(record.model_copy(update={"progress": probing}), end)
    if alternation.with_change and arm.idle:
        # The trial waits for requests with the change in force.
        return _begin(record, end)
    alternation, numbers = alternation.measured(arm, plan.slo, plan.most_failed)
    update = {"alternation": alternation, "schedule": schedule.with_quiet_block(end)}
    progress = progress.model_copy(update=update)
    told = arm.outcomes is not None
    return _begin(_compared(record, progress, numbers, tells_failures=told), end)


def _compared(
    record: Record,
    progress: Progress,
    numbers: Mapping[str, float],
    *,
    tells_failures: bool | None = None,
) -> Record:
    """With these numbers of a block; `tells_failures` is None where it was not asked for them."""
    if Guard.ERRORS in record.plan.guards and tells_failures is not None:
        progress = _with_errors_guard(progress, tells_failures=tells_failures)
    for name, value in numbers.items():
        criterion = record.plan.of_blocks(name)
        if criterion is not None:
            progress = progress.compared(criterion, [value])
    return record.model_copy(update={"progress": progress})


def _with_errors_guard(progress: Progress, *, tells_failures: bool) -> Progress:
    """Say so where engines do not tell of failed requests: the guard is not kept, it is not there.

    One gap does not undo what was seen before.
    """
    if tells_failures:
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
