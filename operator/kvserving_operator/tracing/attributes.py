"""Attributes of spans: names of the API and of the code, and numbers; nobody's texts. Pure."""

import math
from collections.abc import Iterable, Mapping

from kvserving_operator.api.v1alpha1 import KVServingStatus
from kvserving_operator.looks import Look
from kvserving_operator.tracing.emitter import Attributes, Event, Identity
from kvserving_operator.trials.record import Record
from kvserving_tuner.decision import Change
from kvserving_tuner.trials.progress import Conclusion


def key_of(look: Look) -> tuple[str, str]:
    """Namespace and name of the KVServing."""
    return look.facts.ref.namespace, look.facts.ref.name


def common(look: Look) -> dict[str, str]:
    """What every span has."""
    namespace, name = key_of(look)
    return {"k8s.namespace.name": namespace, "kvserving.name": name}


def change_of(change: Change | None) -> dict[str, str | int]:
    """A change; nothing for none."""
    if change is None:
        return {}
    return {
        "kvserving.knob": change.knob.value,
        "kvserving.from": change.from_value,
        "kvserving.to": change.to_value,
        "kvserving.cost": change.cost.value,
    }


def numbers(prefix: str, found: Mapping[str, float | str]) -> dict[str, float]:
    """The numbers among what a decision rests on."""
    return {
        f"{prefix}.{name}": float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def verdict_of(conclusion: Conclusion) -> dict[str, str]:
    """How a trial ends."""
    return {
        "kvserving.verdict": conclusion.verdict.value,
        "kvserving.reason": conclusion.reason.value,
    }


def evidence_of(record: Record) -> Iterable[Event]:
    """An event for each criterion of a trial, with its numbers in percent."""
    for name, comparison in record.progress.evidence.items():
        found = comparison.finding()
        attributes: Attributes = {
            "kvserving.criterion": name,
            "kvserving.samples": found.count,
            **numbers(
                "kvserving.criterion",
                {
                    "percent": found.percent,
                    "bound": found.bound_percent,
                    "low": found.interval_percent.low,
                    "high": found.interval_percent.high,
                    "harm_e_value": found.harm_e_value,
                    "safety_e_value": found.safety_e_value,
                },
            ),
        }
        yield Event("evidence", attributes)


def in_force(status: KVServingStatus) -> dict[str, str | int]:
    """What engines say is in force; nothing where they do not agree on, or tell, a setting."""
    found = status.effective
    if found is None:
        return {}
    settings = {
        "kvserving.effective.kv_cache_dtype": found.kv_cache_dtype,
        "kvserving.effective.eviction": found.eviction,
        "kvserving.effective.max_active_seqs": found.max_active_seqs,
    }
    return {name: value for name, value in settings.items() if value is not None}


def identities(
    namespace: str, name: str, trial: str, uid: str, decision: str
) -> tuple[Identity, Identity | None]:
    """Identity of a trial's span, and of the decision that asked for it, where one did."""
    own = Identity.of("trial", namespace, name, trial, uid)
    if not decision:
        return own, None
    parent = Identity.of("decision", decision)
    return Identity(parent.trace, own.span), parent
