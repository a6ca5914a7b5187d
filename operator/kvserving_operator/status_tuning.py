"""The tuner's part of the status: what the engines report, and what was decided. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from kvserving_operator.api.conditions import timestamp
from kvserving_operator.api.v1alpha1 import (
    MIXED,
    CapacityStatus,
    CostClass,
    DecisionAction,
    DecisionStatus,
    EffectiveStatus,
    Evidence,
    Recommendation,
    TuningMode,
)
from kvserving_operator.facts import Facts
from kvserving_operator.promoted import KNOB
from kvserving_operator.tuning import Turn
from kvserving_tuner.decision import Action, Decision, Reason
from kvserving_tuner.runtime_client import RuntimeState
from kvserving_tuner.state import TunerState

MAX_NUMBERS = 32
TEXT_LIMIT = 1024
VALUE_LIMIT = 128

SETTLING = frozenset(
    {
        Reason.WARMING_UP,
        Reason.DRAINING,
        Reason.CONFIRMING,
        Reason.COOLDOWN,
        Reason.RECOMMENDATION_STANDS,
        Reason.TRIAL_STANDS,
        Reason.WATCHING,
    }
)
"""Reasons to hold that merely follow from the decision before: that one stays on show."""


def effective(facts: Facts, previous: EffectiveStatus | None) -> EffectiveStatus | None:
    """Settings in force in the ready pods; the last known ones while none of them answers."""
    ready = [pod.name for pod in facts.engines if pod.ready and pod.stable]
    states = [facts.turn.readback.runtime[n] for n in ready if n in facts.turn.readback.runtime]
    if not states:
        return previous if ready else None
    return EffectiveStatus(
        kv_cache_dtype=_same(s.effective.kv_cache_dtype for s in states),
        eviction=_same(s.effective.eviction.policy for s in states),
        max_active_seqs=_same_number(s.effective.max_active_seqs for s in states),
        max_num_seqs=_same_number(_whole(s.startup.get("max_num_seqs")) for s in states),
        max_scheduled_tokens=_same_number(s.effective.max_scheduled_tokens for s in states),
        engine_version=_same(s.versions.get("vllm") for s in states),
        plugin_version=_same(s.versions.get("plugin") for s in states),
    )


def capacity(facts: Facts, previous: CapacityStatus | None) -> CapacityStatus | None:
    """KV cache of one pod, the smallest where pods differ."""
    ready = [pod.name for pod in facts.engines if pod.ready]
    states = [facts.turn.readback.runtime[n] for n in ready if n in facts.turn.readback.runtime]
    sized = [s for s in states if s.capacity.kv_cache_tokens is not None]
    if not sized:
        return previous if ready else None
    smallest = min(sized, key=_tokens).capacity
    return CapacityStatus(
        kv_cache_bytes=smallest.kv_cache_bytes,
        kv_cache_tokens=smallest.kv_cache_tokens,
        block_size=smallest.block_size,
        blocks=smallest.blocks,
        bytes_per_token=_decimal(smallest.bytes_per_token),
        max_concurrency=_decimal(smallest.max_concurrency),
    )


def is_new(decision: Decision, previous: DecisionStatus | None) -> bool:
    """Whether a decision says something that the last one shown did not."""
    if decision.action is not Action.HOLD:
        return previous is None or previous.id != decision.id
    if previous is None:
        return True
    if decision.reason in SETTLING:
        return False
    shown = (previous.action.value, previous.reason, previous.diagnosis)
    return shown != (decision.action.value, decision.reason.value, decision.diagnosis.kind.value)


def last_decision(turn: Turn, previous: DecisionStatus | None) -> DecisionStatus | None:
    """Decision to show: the latest one that says something new."""
    decision = turn.decision
    if decision is None or not is_new(decision, previous):
        return previous
    change = decision.change
    return DecisionStatus(
        id=decision.id[:63],
        at=_moment(decision.at),
        diagnosis=decision.diagnosis.kind.value,
        action=DecisionAction(decision.action.value),
        outcome=turn.outcome,
        knob=change.knob.value if change else None,
        from_value=str(change.from_value) if change else None,
        to_value=str(change.to_value) if change else None,
        cost_class=CostClass(change.cost.value) if change else None,
        reason=decision.reason.value,
        message=decision.message[:TEXT_LIMIT],
        numbers=_numbers(decision.numbers),
    )


def recommendation(state: TunerState, mode: TuningMode) -> Recommendation | None:
    """Change that the tuner would make."""
    standing = state.recommendation
    if standing is None or mode is TuningMode.OFF:
        return None
    # In mode Auto the cap is changed, and only what nobody here can do is recommended.
    if mode is TuningMode.AUTO and standing.knob == KNOB.value:
        return None
    return Recommendation(
        id=standing.id[:63],
        at=_moment(standing.at),
        knob=standing.knob,
        from_value=str(standing.from_value),
        to_value=str(standing.to_value),
        cost_class=CostClass(standing.cost.value),
        reason=standing.reason,
        message=standing.message[:TEXT_LIMIT],
    )


def _numbers(numbers: Mapping[str, float | str]) -> tuple[Evidence, ...]:
    entries = list(numbers.items())[:MAX_NUMBERS]
    return tuple(Evidence(name=name, value=_value(value)) for name, value in entries)


def _value(value: float | str) -> str:
    text = value if isinstance(value, str) else f"{value:.6g}"
    return text[:VALUE_LIMIT]


def _moment(epoch_seconds: float) -> str:
    return timestamp(datetime.fromtimestamp(epoch_seconds, UTC))


def _same(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else MIXED


def _same_number(values: Iterable[int | None]) -> int | str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else MIXED


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _tokens(state: RuntimeState) -> int:
    return state.capacity.kv_cache_tokens or 0


def _decimal(value: float | None) -> str | None:
    """Give a number as plain decimal text."""
    return None if value is None else f"{value:.6f}".rstrip("0").rstrip(".")
