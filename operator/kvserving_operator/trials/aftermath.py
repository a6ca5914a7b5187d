"""What a trial that has ended leaves in force, and what is remembered of it; pure."""

from kvserving_operator.api.v1alpha1 import RequestedBy
from kvserving_operator.live import KVSettings
from kvserving_operator.trials.record import (
    Ended,
    Engines,
    Record,
    Rejected,
    Restarted,
    Settled,
    Trials,
    TurnedDown,
    changed_field,
)
from kvserving_operator.trials.watch import Watch
from kvserving_tuner.judge import Cause
from kvserving_tuner.trials.progress import Conclusion, End, Verdict
from kvserving_tuner.trials.watched import begin

REMEMBERED = 16
"""Rejections that are kept."""
VALUE_LIMIT = 128
"""Most characters of a value in `status.verdicts`."""
BY_PERSON = frozenset({End.ASKED_FOR, End.SUPERSEDED})
"""Ends that say nothing of any engine."""


def after(trials: Trials, record: Record, now: float) -> Trials:
    """What a trial that has ended leaves in force, and what it rejects."""
    conclusion = record.progress.conclusion
    if conclusion is None:
        raise ValueError(f"expected trial {record.name} to have a conclusion")
    if record.revision:
        return _after_restart(trials, record, conclusion, now)
    ended = Ended(
        trial=record.name,
        field=record.field,
        value=str(record.candidate),
        verdict=conclusion.verdict,
        reason=conclusion.reason.value,
        at=now,
    )
    if record.again and trials.settled is not None:
        # It is still to be settled, on the pods that came in the place of these.
        kept = trials.settled.model_copy(update={"ended": ended})
        return trials.model_copy(update={"running": None, "settled": kept})
    promoted = record.remains == record.candidate
    spec_wanted_it = record.requested_by is RequestedBy.SPEC
    asked = record.asked
    if not spec_wanted_it and trials.settled is not None:
        # An edit that waits for its trial waits on.
        asked = trials.settled.asked
    settled = Settled(
        asked=asked,
        settings=record.remains,
        template=record.template,
        engines=Engines() if conclusion.reason in BY_PERSON else record.engines,
        trial=record.name,
        rolled_back=spec_wanted_it and not promoted,
        verdict=conclusion.verdict,
        message=f"{record.change}: {conclusion.message}",
        ended=ended,
    )
    rejected = trials.rejected
    if conclusion.rejects:
        rejected = with_rejection(
            trials,
            record.candidate,
            record.engines,
            record.name,
            conclusion.message,
            now,
            record.reject_for_seconds,
        )
    watch = trials.watch
    if promoted:
        # Beside a quantized cache or eviction no engine answered in 16 bits, but some had before.
        known = (
            {}
            if watch is None
            else watch.baselines_of(record.stable, record.template, record.weights)
        )
        watch = Watch(
            trial=record.name,
            settings=record.candidate,
            fallback=record.fallback,
            plan=record.plan,
            reject_for_seconds=record.reject_for_seconds,
            template=record.template,
            weights=record.weights,
            watched=begin(record.plan, record.progress, known),
        )
    update = {"running": None, "settled": settled, "rejected": rejected, "watch": watch}
    return trials.model_copy(update=update)


def _after_restart(trials: Trials, record: Record, conclusion: Conclusion, now: float) -> Trials:
    """What a trial of a template has decided; the KV cache in force is none of its business."""
    ended = Ended(
        trial=record.name,
        field=record.field,
        value=record.change[:VALUE_LIMIT],
        verdict=conclusion.verdict,
        reason=conclusion.reason.value,
        at=now,
    )
    message = f"{record.change}: {conclusion.message}"
    restarted = Restarted(
        trial=record.name, verdict=conclusion.verdict, message=message, ended=ended
    )
    turned_down = trials.turned_down
    if not record.ready_for_all and not record.again:
        judged = conclusion.rejects and conclusion.verdict is Verdict.ROLLED_BACK
        seconds = record.reject_for_seconds if conclusion.rejects else 0.0
        entry = TurnedDown(
            key=record.content if judged else record.base,
            trial=record.name,
            message=message,
            until=now + seconds,
            retry=record.retry,
        )
        turned_down = (*(each for each in turned_down if each.key != entry.key), entry)
    update = {
        "running": None,
        "restarted": restarted,
        "turned_down": turned_down[-REMEMBERED:],
    }
    return trials.model_copy(update=update)


def after_regression(
    trials: Trials, watch: Watch, message: str, engines: Engines, now: float
) -> Trials:
    """With the fallback in force, as what was promoted does not keep its quality any more."""
    if trials.settled is None:
        raise ValueError("expected something promoted to be in force")
    settled = Settled(
        asked=trials.settled.asked,
        settings=watch.fallback,
        template=trials.settled.template,
        engines=engines,
        trial=watch.trial,
        rolled_back=trials.settled.asked == watch.settings,
        verdict=Verdict.ROLLED_BACK,
        message=f"{watch.settings} -> {watch.fallback}: after its promotion {message}",
        ended=Ended(
            trial=watch.trial,
            field=changed_field(watch.fallback, watch.settings),
            value=str(watch.settings),
            verdict=Verdict.ROLLED_BACK,
            reason=Cause.QUALITY_DROP.value,
            at=now,
        ),
    )
    rejected = with_rejection(
        trials, watch.settings, engines, watch.trial, message, now, watch.reject_for_seconds
    )
    update = {"running": None, "settled": settled, "rejected": rejected, "watch": None}
    return trials.model_copy(update=update)


def with_rejection(
    trials: Trials,
    settings: KVSettings,
    engines: Engines,
    trial: str,
    message: str,
    now: float,
    seconds: float,
) -> tuple[Rejected, ...]:
    """Rejections with a new one, unless the policy forgets at once."""
    if not seconds:
        return trials.rejected
    entry = Rejected(
        settings=settings, engines=engines, trial=trial, message=message, until=now + seconds
    )
    others = (
        each
        for each in trials.rejected
        if each.settings != settings or each.engines.differ(engines)
    )
    return (*others, entry)[-REMEMBERED:]
