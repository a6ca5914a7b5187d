"""How a trial ends: the conclusions that a look can come to."""

from kvserving_tuner.judge import Cause, Trial, judge
from kvserving_tuner.judge import Verdict as Judgement
from kvserving_tuner.trials.facts import Facts, Wish
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import Conclusion, End, Progress, Verdict


def ended_from_outside(plan: Plan, progress: Progress, facts: Facts) -> Conclusion | None:
    """What ends a trial whatever its evidence says; None where nothing does."""
    if facts.superseded:
        return Conclusion(verdict=Verdict.VOID, reason=End.SUPERSEDED, message=facts.superseded)
    if facts.wish is Wish.ROLL_BACK:
        return Conclusion(
            verdict=Verdict.ROLLED_BACK, reason=End.ASKED_FOR, message="a person ended the trial"
        )
    if facts.refused:
        return Conclusion(
            verdict=Verdict.FAILED, reason=End.SETTINGS_REFUSED, message=facts.refused
        )
    if facts.unstartable:
        return Conclusion(
            verdict=Verdict.FAILED, reason=End.START_FAILED, message=facts.unstartable
        )
    if facts.no_room:
        return _without_room(plan, facts)
    if facts.hard_stop is not None:
        judgement = judge(Trial({}, {}, hard_stop=facts.hard_stop), Plan().rules)
        return rolled_back(judgement)
    return None


def _without_room(plan: Plan, facts: Facts) -> Conclusion:
    """An only engine that nothing can be tried beside is replaced, or it is not."""
    if not plan.single_replica:
        message = f"the policy's ab.singleReplica is Refuse, and {facts.no_room}"
        return Conclusion(verdict=Verdict.FAILED, reason=End.SINGLE_REPLICA, message=message)
    message = (
        f"{facts.no_room}: it is replaced untried, as the policy's ab.singleReplica is "
        "SwitchInPlace, and no engine answers from when it leaves until the new one has loaded the "
        "model"
    )
    return Conclusion(
        verdict=Verdict.INCONCLUSIVE, reason=End.SINGLE_REPLICA, message=message, untried=True
    )


def rolled_back(judgement: Judgement, *, served: bool = True) -> Conclusion:
    """As the judge has it; `served` is whether a pod had the change."""
    return Conclusion(
        verdict=Verdict.ROLLED_BACK,
        reason=judgement.cause,
        message=judgement.message,
        # Where no pod had the change, the quality of what is served has not fallen.
        to_fallback=served and judgement.cause is Cause.QUALITY_DROP,
    )


def exhausted(plan: Plan, judgement: Judgement) -> Conclusion:
    """There is nothing left to ask."""
    message = (
        f"every prompt of the probe set was scored, and a bound of {plan.max_drop_percent:g} % "
        f"needs more of them: {judgement.message}"
    )
    return Conclusion(verdict=Verdict.INCONCLUSIVE, reason=End.SET_EXHAUSTED, message=message)


def nothing_counts(progress: Progress) -> Conclusion:
    """Every probe that could tell was left out."""
    reasons = "; ".join(f"{name}: {each.message}" for name, each in progress.left_out.items())
    message = f"no probe can tell what the change costs, so no engine keeps it: {reasons}"
    return Conclusion(verdict=Verdict.INCONCLUSIVE, reason=Cause.QUALITY_NOT_SHOWN, message=message)
