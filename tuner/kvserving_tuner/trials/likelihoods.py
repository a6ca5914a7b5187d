"""Which prompts a trial has scored next, and what their likelihoods say."""

import math
from collections.abc import Sequence

from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import SCREENED, SERVED, Progress, State
from kvserving_tuner.trials.schedule import Stretch
from kvserving_tuner.trials.tasks import is_shown

PROMPTS_AT_ONCE = 16
"""Prompts that are asked for in one go: what is under way when a trial ends is dropped."""


def next_prompts(plan: Plan, progress: Progress, facts: Facts) -> tuple[str, range] | None:
    """What to score now: the kind of evidence and numbers of prompts; None for nothing."""
    if facts.wish is Wish.PAUSE or not facts.ready:
        return None
    if not plan.likelihood:
        return None
    if progress.state is State.SCREENING:
        return _few(SCREENED, progress.screened, facts) if plan.screened else None
    serving = progress.candidates and facts.changed >= set(progress.candidates)
    probes = serving and progress.schedule.stretch is Stretch.PROBING
    if probes and progress.state is State.RUNNING and open_prompts(plan, progress, facts):
        return _few(SERVED, progress.served, facts)
    return None


def open_prompts(plan: Plan, progress: Progress, facts: Facts) -> bool:
    """Whether more prompts are to be scored on engines with the change, at some time."""
    served = progress.likelihood(SERVED)
    # As many as the judge wants, or the trial would wait for prompts that nobody asks.
    enough = bool(served) and is_shown(plan, progress, served)
    return plan.likelihood and not enough and progress.served < facts.prompts


def _few(kind: str, first: int, facts: Facts) -> tuple[str, range] | None:
    numbers = range(first, min(first + PROMPTS_AT_ONCE, facts.prompts))
    return (kind, numbers) if numbers else None


def scored(
    plan: Plan, progress: Progress, kind: str, stratum: str, rises: Sequence[float]
) -> Progress:
    """With the paired rises of prompts that were asked for; NaN is the caller's hard stop."""
    if any(math.isnan(rise) for rise in rises):
        raise ValueError("expected numbers: a likelihood that is none stops a trial at once")
    progress = progress.compared(plan.quality(f"{kind}Likelihood{stratum}"), rises)
    if kind == SCREENED:
        return progress.model_copy(update={"screened": progress.screened + len(rises)})
    return progress.model_copy(update={"served": progress.served + len(rises)})
