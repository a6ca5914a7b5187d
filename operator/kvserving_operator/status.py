"""The status of a KVServing from the facts; pure, and equal facts give an equal status.

A status that differs is written, so nothing in it may change by the mere passing of time.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from kvserving_operator.api.conditions import (
    Condition,
    find_condition,
    is_true,
    set_condition,
    timestamp,
)
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_operator.api.v1alpha1 import (
    MAX_PODS,
    KVServingStatus,
    PodState,
    PodStatus,
    PreflightState,
    PreflightStatus,
    VerdictStatus,
)
from kvserving_operator.checks import SKIPPED
from kvserving_operator.facts import Facts
from kvserving_operator.observe import PodView
from kvserving_operator.render.names import ENGINE_PORT
from kvserving_operator.rollout import Phase
from kvserving_operator.status_tuning import capacity, effective, last_decision, recommendation
from kvserving_operator.traffic.report import traffic_status
from kvserving_operator.trials.report import promoted_value, verdict_statuses
from kvserving_operator.verdicts import (
    Outcome,
    degraded,
    metrics_available,
    progressing,
    quality_gate,
    ready,
    rolled_back,
    routed,
    tuning_active,
)

MAX_VERDICTS = 16
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MEASURED = (ConditionType.METRICS_AVAILABLE, ConditionType.TUNING_ACTIVE)
"""Conditions whose messages hold measured numbers: a change of those alone is not worth a write."""


def parse_status(body: Mapping[str, Any]) -> KVServingStatus:
    """Status of an object; one that cannot be read counts as lost."""
    try:
        return KVServingStatus.model_validate_json(json.dumps(body.get("status") or {}))
    except ValidationError:
        return KVServingStatus()


def build_status(previous: KVServingStatus, facts: Facts) -> KVServingStatus:
    """Status that the facts call for."""
    spec, step = facts.serving.spec, facts.step
    current = step.state.current
    updated = [pod for pod in facts.engines if current and pod.revision == current.hash]
    conditions = _conditions(previous, facts)
    return KVServingStatus(
        conditions=conditions,
        reason=_headline(conditions),
        observed_generation=facts.serving.metadata.generation,
        replicas=len(facts.engines),
        ready_replicas=facts.ready,
        updated_replicas=len(updated),
        selector=",".join(f"{key}={value}" for key, value in facts.ref.selector.items()),
        endpoint=f"http://{facts.ref.name}.{facts.ref.namespace}.svc:{ENGINE_PORT}/v1",
        template_hash=current.hash if current else None,
        effective=effective(facts, previous.effective),
        capacity=capacity(facts, previous.capacity),
        pods=tuple(_pod_status(pod, facts) for pod in facts.pods[:MAX_PODS]),
        promoted=(
            *facts.turn.promoted,
            *promoted_value(facts.trials.settled, facts.serving.metadata.generation),
        ),
        recommendation=recommendation(facts.turn.state, spec.tuning.mode),
        last_decision=last_decision(facts.turn, previous.last_decision),
        traffic=traffic_status(facts.traffic),
        verdicts=_verdicts(previous.verdicts, facts),
        preflight=_preflight(previous.preflight, facts),
    )


def invalid_status(
    previous: KVServingStatus, message: str, generation: int, now: float
) -> KVServingStatus:
    """Status of a spec that breaks a rule: the pods go on, and Ready keeps describing them."""
    moment = datetime.fromtimestamp(now, UTC)
    conditions = previous.conditions
    for type, status in ((ConditionType.PROGRESSING, False), (ConditionType.DEGRADED, True)):
        conditions = set_condition(
            conditions, type, status, Reason.INVALID_SPEC, message, generation, moment
        )
    if find_condition(conditions, ConditionType.READY) is None:
        conditions = set_condition(
            conditions, ConditionType.READY, False, Reason.INVALID_SPEC, message, generation, moment
        )
    return previous.model_copy(
        update={
            "conditions": conditions,
            "reason": _headline(conditions),
            "observed_generation": generation,
        }
    )


def _conditions(previous: KVServingStatus, facts: Facts) -> tuple[Condition, ...]:
    conditions: tuple[Condition, ...] = previous.conditions
    for type, outcome in _outcomes(facts):
        old = find_condition(previous.conditions, type)
        if outcome is None:
            if old is not None:
                continue
            outcome = Outcome(None, Reason.NOT_OBSERVED, "nothing has been observed yet")
        conditions = set_condition(
            conditions,
            type,
            outcome.status,
            outcome.reason,
            _message(type, old, outcome),
            _generation(type, old, outcome, facts),
            datetime.fromtimestamp(facts.now, UTC),
        )
    return conditions


def _headline(conditions: tuple[Condition, ...]) -> str | None:
    """Reason of the condition that says most about the moment."""
    for type in (ConditionType.DEGRADED, ConditionType.PROGRESSING):
        if is_true(conditions, type):
            break
    else:
        type = ConditionType.READY
    found = find_condition(conditions, type)
    return found.reason if found else None


def _outcomes(facts: Facts) -> Iterable[tuple[ConditionType, Outcome | None]]:
    yield ConditionType.READY, ready(facts)
    yield ConditionType.PROGRESSING, progressing(facts)
    yield ConditionType.DEGRADED, degraded(facts)
    yield ConditionType.METRICS_AVAILABLE, metrics_available(facts)
    yield ConditionType.QUALITY_GATE, quality_gate(facts)
    yield ConditionType.TUNING_ACTIVE, tuning_active(facts)
    yield ConditionType.ROLLED_BACK, rolled_back(facts)
    yield ConditionType.ROUTED, routed(facts)


def _generation(type: ConditionType, old: Condition | None, outcome: Outcome, facts: Facts) -> int:
    """Generation a condition speaks of: pods that serve an older one claim no newer."""
    settled = facts.step.phase is Phase.DONE
    if type is ConditionType.READY and outcome.status and not settled and old is not None:
        return old.observed_generation
    return facts.serving.metadata.generation


def _message(type: ConditionType, old: Condition | None, outcome: Outcome) -> str:
    same = old is not None and old.reason == outcome.reason.value
    if same and type in _MEASURED and old is not None:
        words = _NUMBER.sub("#", outcome.message)
        if words == _NUMBER.sub("#", old.message):
            return old.message
    return outcome.message


def _pod_status(pod: PodView, facts: Facts) -> PodStatus:
    runtime = facts.turn.readback.runtime.get(pod.name)
    return PodStatus(
        name=pod.name,
        state=_pod_state(pod),
        node=pod.node,
        kv_cache_dtype=runtime.effective.kv_cache_dtype if runtime else None,
        max_active_seqs=runtime.effective.max_active_seqs if runtime else None,
        restarts=pod.restarts,
        message=_pod_message(pod),
    )


def _pod_state(pod: PodView) -> PodState:
    if pod.deleting:
        return PodState.TERMINATING
    if pod.ready:
        return PodState.READY
    if pod.crash_looping or pod.config_problem or pod.image_problem:
        return PodState.FAILED
    if pod.container_ready:
        return PodState.NOT_READY
    return PodState.STARTING if pod.running else PodState.PENDING


def _pod_message(pod: PodView) -> str | None:
    if pod.ready or pod.deleting:
        return None
    if pod.unschedulable:
        return pod.unschedulable
    if pod.waiting_message:
        return f"{pod.waiting_reason}: {pod.waiting_message}"
    if pod.container_ready and not pod.gate:
        return pod.gate_message or "promoted values have not been applied yet"
    return None


def _verdicts(previous: tuple[VerdictStatus, ...], facts: Facts) -> tuple[VerdictStatus, ...]:
    """Latest outcomes of trials, the newest last."""
    # What was promoted may be rolled back later: then a trial has two.
    known = {(each.trial, each.verdict) for each in previous}
    new = (
        each for each in verdict_statuses(facts.trials) if (each.trial, each.verdict) not in known
    )
    return (*previous, *new)[-MAX_VERDICTS:]


def _preflight(previous: PreflightStatus | None, facts: Facts) -> PreflightStatus | None:
    state = facts.step.state
    checked = state.candidate or state.current
    if checked is None:
        return previous
    verdict = next((v for v in state.verdicts if v.template_hash == checked.hash), None)
    if verdict is None:
        if facts.step.phase is not Phase.CHECKING:
            return previous
        found, message = PreflightState.RUNNING, None
    elif verdict.reason == Reason.PREFLIGHT_FAILED.value:
        found, message = PreflightState.REJECTED, verdict.message
    elif verdict.ok:
        skipped = verdict.reason == SKIPPED
        found = PreflightState.SKIPPED if skipped else PreflightState.PASSED
        message = verdict.message or None
    else:
        return previous
    if previous and (previous.template_hash, previous.state) == (checked.hash, found):
        return previous
    return PreflightStatus(
        template_hash=checked.hash,
        state=found,
        reason=verdict.reason if verdict and not verdict.ok else None,
        message=message[:1024] if message else None,
        at=timestamp(datetime.fromtimestamp(facts.now, UTC)),
    )
