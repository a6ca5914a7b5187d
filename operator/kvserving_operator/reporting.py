"""What the operator tells the world besides the status: Events and the audit log."""

import logging
from collections.abc import Iterable

from kvserving_operator.actions import Action, Announce
from kvserving_operator.api.conditions import ConditionStatus, find_condition
from kvserving_operator.api.reasons import ConditionType, Reason
from kvserving_operator.api.v1alpha1 import DecisionStatus, KVServingStatus
from kvserving_operator.live import described
from kvserving_operator.status_tuning import is_new
from kvserving_operator.switching import Switched
from kvserving_operator.tuning import REJECTED, Turn
from kvserving_tuner.decision import Action as TunerAction
from kvserving_tuner.decision import Decision
from kvserving_tuner.runtime_client import RuntimeState

audit = logging.getLogger("kvserving.audit")
"""One line of JSON for each decision that says something new, and nothing else."""

_EVENT_REASON = {
    TunerAction.CHANGE: Reason.SETTING_CHANGED,
    TunerAction.RECOMMEND: Reason.RECOMMENDED,
    TunerAction.TRIAL: Reason.DECIDED,
    TunerAction.HOLD: Reason.DECIDED,
}


def new_decision(turn: Turn, shown: DecisionStatus | None) -> Decision | None:
    """Decision of a turn that says something new."""
    decision = turn.decision
    return decision if decision is not None and is_new(decision, shown) else None


def decision_event(decision: Decision, turn: Turn) -> Announce:
    """Event about a decision; a refused change is a warning."""
    # A diagnosis from which nothing follows is its own reason: said once.
    head = "/".join(dict.fromkeys((decision.diagnosis.kind.value, decision.reason.value)))
    if turn.outcome == REJECTED:
        message = f"{head}: {decision.message}; refused by the engine: {turn.rejection}"
        return Announce(Reason.RUNTIME_REJECTED.value, message, warning=True)
    return Announce(_EVENT_REASON[decision.action].value, f"{head}: {decision.message}")


def switch_events(switched: Switched) -> tuple[Announce, ...]:
    """Events about engines that took `spec.kvCache` live, or could not."""
    events = []
    for change in switched.changes:
        before, after = change.before, change.after
        tokens = f"{before.capacity.kv_cache_tokens} -> {after.capacity.kv_cache_tokens}"
        message = (
            f"spec.kvCache: pod {change.pod}: {_kv_cache(before)} -> {_kv_cache(after)}, "
            f"room for {tokens} tokens"
        )
        events.append(Announce(Reason.SETTING_CHANGED.value, message))
    for refusal in switched.new:
        message = switched.complaint(refusal)
        events.append(Announce(Reason.SETTINGS_REFUSED.value, message, warning=True))
    return tuple(events)


def _kv_cache(state: RuntimeState) -> str:
    return described(state.effective.kv_cache_dtype, state.effective.eviction.policy)


def trouble(
    before: KVServingStatus, after: KVServingStatus, said: Iterable[Action]
) -> tuple[Announce, ...]:
    """Event about a fault that is new and that nothing else has announced."""
    new = find_condition(after.conditions, ConditionType.DEGRADED)
    if new is None or new.status is not ConditionStatus.TRUE:
        return ()
    old = find_condition(before.conditions, ConditionType.DEGRADED)
    known = old is not None and (old.status, old.reason) == (new.status, new.reason)
    if known or any(isinstance(a, Announce) and a.reason == new.reason for a in said):
        return ()
    return (Announce(new.reason, new.message, warning=True),)
