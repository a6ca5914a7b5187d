"""What metrics say of one KVServing, from what a look at it has found out."""

from collections.abc import Iterable, Mapping
from typing import Final

from kvserving_operator.api.conditions import is_true
from kvserving_operator.api.reasons import ConditionType
from kvserving_operator.api.v1alpha1 import KVServingStatus
from kvserving_operator.facts import Facts
from kvserving_operator.metrics import Labels, OperatorMetrics
from kvserving_operator.trials.record import Record, Trials
from kvserving_operator.trials.turn import Outcome
from kvserving_tuner.judge import Comparison
from kvserving_tuner.judge.criteria import drop_percent
from kvserving_tuner.trials.plan import GOODPUT_GAIN
from kvserving_tuner.trials.progress import Conclusion, End, Verdict

IN_TRIAL: Final = "Trial"
AFTER_PROMOTION: Final = "Promoted"
"""Stages at which quality is measured, and a change may be taken back."""


def measure(metrics: OperatorMetrics, facts: Facts, status: KVServingStatus) -> None:
    """Update the metrics of one KVServing."""
    key = (facts.ref.namespace, facts.ref.name)
    metrics.wanted_engines.labels(*key).set(facts.serving.spec.replicas)
    metrics.ready_engines.labels(*key).set(facts.ready)
    metrics.info.show(*key, {_info(facts, status): 1})
    _targets(metrics, facts)
    _tuner(metrics, facts)
    _trials(metrics, facts)
    measure_status(metrics, *key, status, facts.now)


def measure_status(
    metrics: OperatorMetrics, namespace: str, name: str, status: KVServingStatus, now: float
) -> None:
    """Update what is known of one whose spec cannot be read, too; `now` in epoch seconds."""
    key = (namespace, name)
    metrics.degraded.labels(*key).set(int(is_true(status.conditions, ConditionType.DEGRADED)))
    metrics.condition.show(
        *key, {(each.type, each.status.value, each.reason): 1 for each in status.conditions}
    )
    metrics.last_tick.labels(*key).set(now)


def _info(facts: Facts, status: KVServingStatus) -> Labels:
    """Model and mode as the spec has them, format and eviction as the engines do."""
    spec, effective = facts.serving.spec, status.effective
    dtype, eviction = "", ""
    if effective is not None:
        dtype, eviction = effective.kv_cache_dtype or "", effective.eviction or ""
    return (spec.model.name or "", spec.tuning.mode.value, dtype, eviction)


def _targets(metrics: OperatorMetrics, facts: Facts) -> None:
    key, slo = (facts.ref.namespace, facts.ref.name), facts.serving.spec.slo
    metrics.slo_ttft.show(*key, _seconds(slo.ttft_milliseconds))
    metrics.slo_tpot.show(*key, _seconds(slo.tpot_milliseconds))
    metrics.slo_percentile.labels(*key).set(slo.percentile)


def _seconds(milliseconds: int | None) -> Mapping[Labels, float]:
    return {} if milliseconds is None else {(): milliseconds / 1000}


def _tuner(metrics: OperatorMetrics, facts: Facts) -> None:
    """What it saw and decided; where it has not looked this time, what was said before stands."""
    key, turn = (facts.ref.namespace, facts.ref.name), facts.turn
    observation, decision = turn.observation, turn.decision
    if observation is None:
        return
    if observation.engines and not observation.blocking():
        metrics.last_observation.labels(*key).set(observation.at)
    shown: dict[Labels, float] = {}
    if decision is not None:
        kind = decision.diagnosis.kind.value
        shown = {(decision.action.value, decision.reason.value, kind): 1}
    metrics.decision.show(*key, shown)


def _trials(metrics: OperatorMetrics, facts: Facts) -> None:
    key, record = (facts.ref.namespace, facts.ref.name), facts.trials.running
    # A counter that begins with its first event does not rise by it: each is there from the start.
    for verdict in Verdict:
        metrics.trials.labels(*key, verdict.value)
    for stage in (IN_TRIAL, AFTER_PROMOTION):
        metrics.rollbacks.labels(*key, stage)
    ended = None if facts.trial is None else concluded(facts.trial)
    if ended is not None:
        metrics.trials.labels(*key, ended.verdict.value).inc()
        # What a person has asked for is no finding of the judge.
        if ended.verdict is Verdict.ROLLED_BACK and ended.reason is not End.ASKED_FOR:
            metrics.rollbacks.labels(*key, IN_TRIAL).inc()
    if facts.trial is not None and facts.trial.regression:
        metrics.rollbacks.labels(*key, AFTER_PROMOTION).inc()
    metrics.trial.show(*key, {} if record is None else {_trial(record): 1})
    _quality(metrics, facts)
    guards = {} if record is None else dict(_guards(record))
    metrics.guard_rise.show(*key, {labels: _drop(each) for labels, each in guards.items()})
    metrics.guard_bound.show(*key, {labels: _bound(each) for labels, each in guards.items()})


def concluded(outcome: Outcome) -> Conclusion | None:
    """How a trial ends, at the look that concluded it alone."""
    before, record = outcome.before, outcome.record
    if record is None or (before is not None and before.progress.conclusion is not None):
        return None
    return record.progress.conclusion


def _trial(record: Record) -> Labels:
    return (record.name, record.progress.state.value, str(record.progress.step))


def _quality(metrics: OperatorMetrics, facts: Facts) -> None:
    key, found = (facts.ref.namespace, facts.ref.name), dict(quality_evidence(facts.trials))
    metrics.quality_drop.show(*key, {labels: _drop(each) for labels, each in found.items()})
    metrics.quality_bound.show(*key, {labels: _bound(each) for labels, each in found.items()})
    metrics.quality_samples.show(*key, {labels: each.count for labels, each in found.items()})


def quality_evidence(trials: Trials) -> Iterable[tuple[Labels, Comparison]]:
    """Evidence on quality by criterion and stage.

    Of the trial under way, else of what was promoted.
    """
    record, watch = trials.running, trials.watch
    if record is not None:
        others = {*record.plan.guarding, GOODPUT_GAIN}
        for name, comparison in record.progress.evidence.items():
            if name not in others and comparison.count:
                yield (name, IN_TRIAL), comparison
    elif watch is not None and watch.settings == _in_force(trials):
        for name, run in watch.watched.runs.items():
            if run.comparison.count:
                yield (name, AFTER_PROMOTION), run.comparison


def _in_force(trials: Trials) -> object:
    return None if trials.settled is None else trials.settled.settings


def _guards(record: Record) -> Iterable[tuple[Labels, Comparison]]:
    for name, comparison in record.progress.evidence.items():
        if name in record.plan.guarding and comparison.count:
            yield (name,), comparison


def _drop(comparison: Comparison) -> float:
    return drop_percent(comparison.criterion, comparison.mean) / 100


def _bound(comparison: Comparison) -> float:
    return drop_percent(comparison.criterion, comparison.criterion.bound) / 100
