"""What people are told of a trial: the status of its KVTrial, Events, and conditions; pure."""

import math
from datetime import UTC, datetime
from typing import Any

from kvserving_operator.actions import Announce
from kvserving_operator.api.conditions import set_condition, timestamp
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_operator.api.v1alpha1 import (
    KVTrial,
    KVTrialSpec,
    KVTrialStatus,
    PromotedValue,
    TrialEvidence,
    TrialState,
    Verdict,
    VerdictStatus,
)
from kvserving_operator.kinds import Kind
from kvserving_operator.render.names import (
    DECISION_ANNOTATION,
    MANAGED_BY,
    SERVING_LABEL,
    ServingRef,
)
from kvserving_operator.trials.record import (
    DTYPE_FIELD,
    EVICTION_FIELD,
    Record,
    Settled,
    Trials,
)
from kvserving_operator.trials.turn import Outcome
from kvserving_tuner.judge import Comparison
from kvserving_tuner.trials.machine import PAUSED_NOTE
from kvserving_tuner.trials.plan import Plan
from kvserving_tuner.trials.progress import ACTIVE, LeftOut, State
from kvserving_tuner.trials.progress import Verdict as TrialVerdict
from kvserving_tuner.trials.tasks import LEAST_BASELINE

TEXT_LIMIT = 1024
MAX_EVIDENCE = 64
LARGEST = 1e6


def trial_status(
    record: Record, previous: KVTrialStatus, generation: int, now: float
) -> KVTrialStatus:
    """Status of a trial's KVTrial."""
    progress, conclusion = record.progress, record.progress.conclusion
    serves = progress.state in (State.RUNNING, State.APPROVAL)
    return KVTrialStatus(
        conditions=set_condition(
            previous.conditions,
            ConditionType.ACCEPTED,
            True,
            Reason.ACCEPTED,
            "the trial is valid",
            generation,
            datetime.fromtimestamp(now, UTC),
        ),
        observed_generation=generation,
        state=_state(record),
        summary=f"{record.field} {record.change}",
        step=progress.step if serves else previous.step,
        step_percent=record.plan.steps[progress.step] if serves else previous.step_percent,
        started_at=_moment(progress.started_at),
        finished_at=_moment(progress.finished_at),
        verdict=Verdict(conclusion.verdict.value) if conclusion else None,
        reason=conclusion.reason.value if conclusion else None,
        message=_message(record)[:TEXT_LIMIT] or None,
        evidence=(
            *(evidence(record.plan, each) for each in progress.evidence.values()),
            *(left_out(name, entry) for name, entry in progress.left_out.items()),
        )[:MAX_EVIDENCE],
        quiet_blocks=progress.schedule.quiet if progress.started_at else None,
        probed_blocks=progress.schedule.probed if progress.started_at else None,
    )


def superseded_status(trial: KVTrial, message: str, now: float) -> KVTrialStatus:
    """Status of a trial that is over before it began."""
    update = {
        "state": TrialState.FINISHED,
        "verdict": Verdict.VOID,
        "reason": "Superseded",
        "message": message,
        "finished_at": _moment(now),
        "observed_generation": trial.metadata.generation,
    }
    return trial.status.model_copy(update=update)


def evidence(plan: Plan, comparison: Comparison) -> TrialEvidence:
    """One criterion with its numbers, in percent or percentage points."""
    finding = comparison.finding()
    if comparison.is_harmful(plan.rules.false_rollback):
        outcome = "Failed"
    elif plan.is_kept(comparison):
        outcome = "Passed"
    else:
        outcome = "Inconclusive"
    high = finding.interval_percent.high
    return TrialEvidence(
        name=finding.name,
        outcome=outcome,
        value=_decimal(finding.percent),
        threshold=_decimal(finding.bound_percent),
        lower=_decimal(finding.interval_percent.low),
        upper=_decimal(high) if math.isfinite(high) else None,
        samples=finding.count,
        e_value=_decimal(finding.harm_e_value),
    )


def left_out(name: str, entry: LeftOut) -> TrialEvidence:
    """A probe that says nothing in this trial; its value is the mean grade in 16 bits."""
    weak = entry.value is not None
    return TrialEvidence(
        name=name,
        outcome="LeftOut",
        value=None if entry.value is None else _decimal(entry.value),
        threshold=_decimal(100 * LEAST_BASELINE) if weak else None,
        samples=entry.samples,
        reason=entry.reason,
    )


def manifest(ref: ServingRef, name: str, spec: KVTrialSpec, decision: str = "") -> dict[str, Any]:
    """KVTrial that an edit of the spec asks for, or a decision of the tuner's."""
    return {
        "apiVersion": Kind.KVTrial.api_version,
        "kind": Kind.KVTrial.name,
        "metadata": {
            "name": name,
            "namespace": ref.namespace,
            "labels": MANAGED_BY | {SERVING_LABEL: ref.name},
            **({"annotations": {DECISION_ANNOTATION: decision}} if decision else {}),
            "ownerReferences": [dict(ref.owner_reference)],
        },
        "spec": spec.to_api(),
    }


def events(outcome: Outcome) -> tuple[Announce, ...]:
    """Events about a trial that has moved on, or about what one has promoted."""
    before, record = outcome.before, outcome.record
    if outcome.regression:
        return (Announce(Reason.QUALITY_REGRESSED.value, outcome.regression, warning=True),)
    if record is None:
        return ()
    old = None if before is None else before.progress
    new, said = record.progress, []
    name = f"trial {record.name}, {record.change}"
    if old is None and new.conclusion is None:
        said.append(Announce(Reason.TRIAL_STARTED.value, f"{name}: begins"))
    step = (new.state, new.step)
    if new.state is State.RUNNING and (old is None or (old.state, old.step) != step):
        pods = "" if record.revision else f"pods {', '.join(new.candidates)} take the change: "
        percent = record.plan.steps[new.step]
        message = f"{name}: step {new.step} ({percent} %): {pods}{new.note}"
        said.append(Announce(Reason.TRIAL_STEP.value, message))
    if new.state is State.APPROVAL and (old is None or old.state is not State.APPROVAL):
        said.append(Announce(Reason.TRIAL_APPROVAL.value, f"{name}: {new.note}"))
    conclusion = new.conclusion
    if conclusion is not None and (old is None or old.conclusion is None):
        verdict = conclusion.verdict
        bad = verdict in (TrialVerdict.ROLLED_BACK, TrialVerdict.FAILED)
        message = f"{name}: {conclusion.message}{_outcome(record)}"
        said.append(Announce(f"Trial{verdict.value}", message, warning=bad))
    return tuple(said)


def verdict_statuses(trials: Trials) -> tuple[VerdictStatus, ...]:
    """Entries of `status.verdicts` for the trials that settled what is in force, oldest first."""
    settled, restarted = trials.settled, trials.restarted
    found = [
        None if settled is None else settled.ended,
        None if restarted is None else restarted.ended,
    ]
    return tuple(
        VerdictStatus(
            trial=ended.trial,
            field=ended.field,
            value=ended.value,
            verdict=ended.verdict.value,
            reason=ended.reason,
            at=timestamp(datetime.fromtimestamp(ended.at, UTC)),
        )
        for ended in sorted((each for each in found if each is not None), key=lambda e: e.at)
    )


def promoted_value(settled: Settled | None, generation: int) -> tuple[PromotedValue, ...]:
    """Entries of `status.promoted` for what a trial put in the place of the spec's."""
    if settled is None or settled.rolled_back:
        return ()
    dtype, asked = settled.settings.kv_cache_dtype, settled.asked
    values = {} if dtype == asked.kv_cache_dtype else {DTYPE_FIELD: dtype}
    if settled.settings.eviction != asked.eviction:
        values[EVICTION_FIELD] = settled.settings.evicted
    return tuple(
        PromotedValue(
            field=name, value=value, trial=settled.trial or None, spec_generation=generation
        )
        for name, value in values.items()
    )


def _outcome(record: Record) -> str:
    """What engines run after a trial that was not passed."""
    conclusion = record.progress.conclusion
    promoted = conclusion is not None and conclusion.verdict is TrialVerdict.PROMOTED
    if promoted or record.ready_for_all:
        return ""
    if record.revision:
        return "; pods keep the template in force"
    return f"; engines run {record.remains}"


def _message(record: Record) -> str:
    """What decided a trial, or what it waits for, and which probes it goes without."""
    progress = record.progress
    said = progress.conclusion.message if progress.conclusion else progress.note
    without = [f"{name}: {entry.message}" for name, entry in progress.left_out.items()]
    if not said or not without or without[0] in said:
        return said
    return f"{said}; left out: {'; '.join(without)}"


def _state(record: Record) -> TrialState:
    progress = record.progress
    if progress.state in ACTIVE and progress.note == PAUSED_NOTE:
        return TrialState.PAUSED
    return TrialState(progress.state.value)


def _moment(epoch_seconds: float | None) -> str | None:
    if epoch_seconds is None:
        return None
    return timestamp(datetime.fromtimestamp(epoch_seconds, UTC))


def _decimal(value: float) -> str:
    """As plain decimal text; beyond a million a number only says that it is large."""
    return f"{min(max(value, -LARGEST), LARGEST):.4f}".rstrip("0").rstrip(".")
