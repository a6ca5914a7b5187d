"""What an edit of a KVServing does to its engines, field by field; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvserving_operator.api.v1alpha1 import EvictionPolicy, KVCacheDType, Switch

RESTARTS = (
    "model",
    "engine",
    "podTemplate",
    "profile",
    "apiKeyRef",
    "slo.ttftMilliseconds",
    "slo.tpotMilliseconds",
    "rollout.startupTimeoutSeconds",
    "rollout.drainSeconds",
)
"""Fields that shape a pod, besides kvCache: an edit replaces all pods."""
SIXTEEN_BITS = (KVCacheDType.AUTO, KVCacheDType.BFLOAT16, KVCacheDType.FLOAT16)


@dataclass(frozen=True)
class Effect:
    """One edited field and what follows from it."""

    field: str
    before: Any
    after: Any
    kind: str
    """Live, Trial, Route, Scale, Restart, or Create."""
    message: str

    def to_json(self) -> dict[str, Any]:
        """As `--output json` shows it."""
        return {
            "field": self.field,
            "from": self.before,
            "to": self.after,
            "effect": self.kind,
            "message": self.message,
        }


def effects(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Effect]:
    """Effects of going from one spec to another; both have their defaults."""
    return [
        Effect(f"spec.{path}", old, new, *_follows(path, after))
        for path, old, new in differences(before, after)
    ]


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Fields that differ, with their values; None for one that is not there."""
    # A section that is new or gone is told by its fields.
    before = {} if before is None and isinstance(after, Mapping) else before
    after = {} if after is None and isinstance(before, Mapping) else after
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            below = f"{path}.{name}" if path else str(name)
            yield from differences(before.get(name), after.get(name), below)
    elif before != after:
        yield path, before, after


def _follows(path: str, spec: Mapping[str, Any]) -> tuple[str, str]:
    engine, rollout = spec.get("engine") or {}, spec.get("rollout") or {}
    replicas = spec.get("replicas", 1)
    if path.startswith("kvCache"):
        return _kv_cache(spec, engine)
    if any(path == field or path.startswith(f"{field}.") for field in RESTARTS):
        away, more = rollout.get("maxUnavailable", 1), rollout.get("maxSurge", 0)
        return (
            "Restart",
            f"after a check {replicas} pods are replaced, at most {away} away and {more} more at "
            "once",
        )
    if path == "replicas":
        return "Scale", f"{replicas} pods; none of those that stay is replaced"
    if path.startswith("routing"):
        return "Route", "the HTTPRoute follows at the operator's next look; no pod is replaced"
    return "Live", "in force at the operator's next look; no pod is replaced"


def _kv_cache(spec: Mapping[str, Any], engine: Mapping[str, Any]) -> tuple[str, str]:
    wanted = spec.get("kvCache") or {}
    policy = (wanted.get("eviction") or {}).get("policy", EvictionPolicy.NONE.value)
    safe = wanted.get("dtype") in SIXTEEN_BITS and policy == EvictionPolicy.NONE.value
    named = (spec.get("rollbackPolicyRef") or {}).get("name")
    if engine.get("plugin") == Switch.DISABLED.value:
        return "Restart", "a stock image takes it at the start alone: pods are replaced"
    if named and not safe:
        return (
            "Trial",
            f"it has to prove itself under the policy {named} before all engines have it",
        )
    return (
        "Live",
        "engines that offer it take it while they serve, one after another; else pods are replaced "
        "after a check",
    )
