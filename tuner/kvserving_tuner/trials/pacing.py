"""When engines with a change are probed, and when they are left alone to be compared; pure.

Quality goes first. While it is open, stretches alternate, and a longer one goes to where something
seems to be wrong: a bad format is found as fast as if it was probed all the time, and an engine
that is slower is watched without a break. Which stretch comes next rests on what was seen before
it alone, so that the numbers of a stretch are as fair as those of any other.
"""

from typing import Final

from kvserving_tuner.judge import Comparison
from kvserving_tuner.trials.alternation import SETTLING_SECONDS
from kvserving_tuner.trials.facts import Facts
from kvserving_tuner.trials.likelihoods import open_prompts
from kvserving_tuner.trials.plan import GOODPUT_GAIN, Guard, Plan
from kvserving_tuner.trials.progress import SERVED, Progress, State
from kvserving_tuner.trials.schedule import LONGER, Schedule, Stretch

PROBING_SECONDS: Final = 180.0
"""Length of a stretch of probing: most of the time is for quality, and a step of five minutes has a
quiet block all the same."""
MOST_AT_ONCE: Final = 600.0
"""Longest stretch of a kind while the other one is wanted too."""
SURE, MOST_FOR_SURE = 3.0, 3600.0
"""Evidence against quality from which on hardly anything interrupts probing, and for how long. A
change that is within its bound ever reaches it with a chance of one in three at most."""
MOST_SETTLING: Final = 900.0
"""Longest time that what probes have held up is waited for."""
STUCK_SECONDS: Final = 300.0
"""Time after which a queue that does not get shorter is the change's own. Within two minutes chance
keeps one long in every fifth case at engines that are busy to 85 %."""
MOST_WAITING: Final = 300.0
"""Time without a block after which a quiet stretch ends: nobody asks, or metrics are missing."""
MOST_BLOCKED: Final = 60.0
"""Time without usable metrics after which engines are probed again: nothing is compared then, and
quality shows all the same."""
FEW_WAIT: Final = 0.5
"""Requests that wait in the mean where hardly any do."""


def paced(plan: Plan, progress: Progress, facts: Facts, passed: float) -> Progress:
    """The trial in the stretch that follows from this look, `passed` seconds after the last one."""
    schedule = _next(plan, progress, facts, passed)
    return progress.model_copy(update={"schedule": schedule})


def asks_more(plan: Plan, progress: Progress, facts: Facts) -> bool:
    """Whether probes of engines with the change would tell something that is wanted of them.

    Tasks that nothing waits for hold no gain up that has to be shown, unless they fare badly.
    """
    if progress.state is not State.RUNNING:
        return False
    if open_prompts(plan, progress, facts):
        return True
    if not facts.tasks_left:
        return False
    gain = progress.compared_by(plan.goodput())
    if gain is None or plan.is_kept(gain):
        return True
    prompts = progress.likelihood(SERVED)
    return any(
        found.count < plan.min_samples
        or (name in facts.tasks and not plan.is_kept(found))
        or _seems_bad(found)
        for name, found in progress.quality(SERVED).items()
        if name not in prompts
    )


def _next(plan: Plan, progress: Progress, facts: Facts, passed: float) -> Schedule:
    schedule, turns = progress.schedule, progress.alternation
    if turns is not None and not turns.with_change:
        return schedule.after(passed)
    if not progress.candidates or not facts.changed >= set(progress.candidates):
        # Requests in flight are computed anew after a switch; turns wait for that themselves.
        broken = schedule.is_quiet and turns is None
        return schedule.becomes(Stretch.SETTLING) if broken else schedule
    if facts.blocked:
        away = turns is None and progress.stalled_seconds >= MOST_BLOCKED
        if away and schedule.stretch is not Stretch.PROBING and asks_more(plan, progress, facts):
            return schedule.becomes(Stretch.PROBING, queue=facts.queue)
        return schedule
    schedule = schedule.after(passed)
    asks, compares = asks_more(plan, progress, facts), _compares(plan, progress, facts)
    match schedule.stretch:
        case Stretch.PROBING:
            over = compares and schedule.seconds >= _probing_seconds(plan, progress)
            if over or not asks:
                return schedule.becomes(Stretch.SETTLING)
            queue = facts.queue if schedule.queue is None else schedule.queue
            return schedule.model_copy(update={"queue": queue})
        case Stretch.SETTLING if compares or not asks:
            return _settling(schedule, facts)
        case Stretch.QUIET if not asks or (compares and not _is_over(plan, progress, schedule)):
            return schedule
    return schedule.becomes(Stretch.PROBING, queue=facts.queue)


def _settling(schedule: Schedule, facts: Facts) -> Schedule:
    """Until requests that a probe held up are done, and the queue that it has left is gone."""
    if facts.probing:
        return schedule.becomes(Stretch.SETTLING)
    if schedule.in_flight is None:
        return schedule.becomes(Stretch.SETTLING, in_flight=facts.in_flight or 0.0)
    left = schedule.in_flight - facts.finished
    schedule = schedule.with_queue(facts.queue).model_copy(update={"in_flight": left})
    rested = schedule.waited >= STUCK_SECONDS or _is_rested(schedule, facts)
    done = schedule.seconds >= SETTLING_SECONDS and left <= 0 and rested
    if done or schedule.seconds >= MOST_SETTLING:
        return schedule.becomes(Stretch.QUIET, since=facts.now)
    return schedule


def _is_rested(schedule: Schedule, facts: Facts) -> bool:
    """Whether no more requests wait than at other engines; at an only one, than before probing."""
    if facts.queue is None:
        return True
    usual = schedule.queue if facts.others_queue is None else facts.others_queue
    return facts.queue <= max(FEW_WAIT, LONGER * (usual or 0.0))


def _is_over(plan: Plan, progress: Progress, schedule: Schedule) -> bool:
    """Whether a quiet stretch gives way to probes."""
    if schedule.waited >= MOST_WAITING:
        return True
    turns = progress.alternation
    if turns is not None and (turns.first is not None or turns.pair % 2):
        # Between two pairs of which one ends and the other begins with the change: so turns with it
        # are as near to those without it on either side.
        return False
    bad = any(_seems_bad(found) for found in _of_blocks(plan, progress)) and not any(
        _seems_bad(found) for found in progress.quality(SERVED).values()
    )
    return schedule.blocks > 0 and (not bad or schedule.seconds >= MOST_AT_ONCE)


def _probing_seconds(plan: Plan, progress: Progress) -> float:
    """Length of a stretch of probing, by what is known of quality and of guards."""
    quality = progress.quality(SERVED).values()
    unheard = not any(found.count for found in quality)
    blocks = _of_blocks(plan, progress)
    shown = bool(blocks) and all(plan.is_kept(found) for found in blocks)
    if any(found.harm.e_value >= SURE for found in quality):
        return MOST_FOR_SURE
    bad = any(_seems_bad(found) for found in quality)
    return MOST_AT_ONCE if unheard or bad or shown else PROBING_SECONDS


def _compares(plan: Plan, progress: Progress, facts: Facts) -> bool:
    """Whether quiet blocks would tell anything."""
    if progress.alternation is not None:
        return True
    others = len(progress.candidates) < len(facts.ready)
    return others and bool(plan.gain is not None or set(plan.guards) - {Guard.ERRORS})


def _of_blocks(plan: Plan, progress: Progress) -> list[Comparison]:
    """Evidence of what quiet blocks compare."""
    names = {*plan.guarding, GOODPUT_GAIN} - {Guard.ERRORS}
    found = [each for name, each in progress.evidence.items() if name in names]
    gain = progress.compared_by(plan.goodput())
    return found if gain is None or GOODPUT_GAIN in progress.evidence else [*found, gain]


def _seems_bad(found: Comparison) -> bool:
    """Whether what was seen so far speaks against the change."""
    return found.harm.e_value > 1
