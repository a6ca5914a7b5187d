"""A Kubernetes API in memory: enough of it for the operator, and a log of every change."""

import base64
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kvserving_operator.errors import ApiRejected, ApiUnavailable, Conflict
from kvserving_operator.kinds import Kind, Object, kind_of

START = 1_800_000_000.0


class Clock:
    """Wall clock and monotonic clock in one; moves when told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds

    @property
    def timestamp(self) -> str:
        """Now, as the API writes it."""
        return datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MemoryCluster:
    """Server-side apply with one manager, resource versions, generations, and a log of changes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.objects: dict[tuple[Kind, str, str], dict[str, Any]] = {}
        self.changes: list[tuple[str, str, str]] = []
        self.broken = False
        self.refused: dict[Kind, int] = {}
        """Kinds whose calls are answered with this status: 404 where a cluster lacks one."""
        self.on_change: Callable[[Kind, dict[str, Any]], None] | None = None
        """Another controller, told of each object that was stored; it may write its status."""
        self._version = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        self._fail_if_broken()
        if self.refused.get(kind) == 404:
            return None
        self._refuse(kind)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> Sequence[Object]:
        """Objects with these labels."""
        self._fail_if_broken()
        self._refuse(kind)
        if kind is Kind.EndpointSlice:
            return self._endpoints(namespace, labels["kubernetes.io/service-name"])
        return [
            copy.deepcopy(found)
            for (its_kind, its_namespace, _), found in self.objects.items()
            if (its_kind, its_namespace) == (kind, namespace)
            and labels.items() <= found["metadata"].get("labels", {}).items()
        ]

    async def apply(self, manifest: Object, subresource: str | None = None) -> Object:
        """Server-side apply by the one manager there is."""
        self._fail_if_broken()
        key = self._key(manifest)
        self._refuse(key[0])
        old = self.objects.get(key)
        version = manifest["metadata"].get("resourceVersion")
        if version is not None and (old is None or old["metadata"]["resourceVersion"] != version):
            raise Conflict(f"{key} was changed")
        if subresource == "status":
            if old is None:
                raise AssertionError(f"status of {key} applied before the object exists")
            old["status"] = json.loads(json.dumps(manifest["status"]))
            return self._stored("status", key, old)
        new = json.loads(json.dumps(manifest))
        self._stamp(key, new, old)
        return self._stored("apply", key, new)

    async def create(self, manifest: Object) -> Object:
        """Create; Conflict where it exists."""
        self._fail_if_broken()
        key = self._key(manifest)
        if key in self.objects:
            raise Conflict(f"{key} exists")
        new = json.loads(json.dumps(manifest))
        for name, text in new.pop("stringData", {}).items():
            new.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        self._stamp(key, new, None)
        return self._stored("create", key, new)

    async def replace(self, manifest: Object) -> Object:
        """Replace the newest version alone."""
        self._fail_if_broken()
        key = self._key(manifest)
        old = self.objects.get(key)
        version = manifest["metadata"].get("resourceVersion")
        if old is None or old["metadata"]["resourceVersion"] != version:
            raise Conflict(f"{key} was changed")
        new = json.loads(json.dumps(manifest))
        self._stamp(key, new, old)
        return self._stored("replace", key, new)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete; no error where it is gone."""
        self._fail_if_broken()
        found = self.objects.get((kind, namespace, name))
        if found is not None and uid in (None, found["metadata"]["uid"]):
            del self.objects[(kind, namespace, name)]
            self.changes.append(("delete", kind.name, name))

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Object) -> None:
        """Merge conditions by type."""
        self._fail_if_broken()
        found = self.objects[(kind, namespace, name)].setdefault("status", {})
        for condition in status["conditions"]:
            others = [c for c in found.get("conditions", []) if c["type"] != condition["type"]]
            found["conditions"] = [*others, dict(condition)]
        self.changes.append(("patch_status", kind.name, name))

    async def patch_labels(
        self, kind: Kind, namespace: str, name: str, labels: Mapping[str, str]
    ) -> None:
        """Set labels of an object that exists."""
        self._fail_if_broken()
        found = self.objects.get((kind, namespace, name))
        if found is not None:
            found["metadata"]["labels"] |= labels
            self._tell("patch_labels", kind, name, found)

    def _endpoints(self, namespace: str, service: str) -> Sequence[Object]:
        """What an endpoints controller would make of a Service and the pods."""
        found = self.objects.get((Kind.Service, namespace, service))
        if found is None:
            return []
        selector = found["spec"]["selector"]
        endpoints = [
            {
                "targetRef": {"kind": "Pod", "name": name},
                "conditions": {"ready": _is_ready(pod)},
            }
            for name, pod in self.of(Kind.Pod).items()
            if selector.items() <= pod["metadata"]["labels"].items()
        ]
        return [{"endpoints": endpoints}]

    def of(self, kind: Kind) -> dict[str, dict[str, Any]]:
        """Objects of a kind by name."""
        return {name: found for (its, _, name), found in self.objects.items() if its is kind}

    def count(self, verb: str, kind: Kind) -> int:
        """How often objects of a kind were changed in one way."""
        return sum(change[:2] == (verb, kind.name) for change in self.changes)

    def _fail_if_broken(self) -> None:
        if self.broken:
            raise ApiUnavailable("the API does not answer")

    def _key(self, manifest: Object) -> tuple[Kind, str, str]:
        return kind_of(manifest), manifest["metadata"]["namespace"], manifest["metadata"]["name"]

    def _stamp(
        self, key: tuple[Kind, str, str], new: dict[str, Any], old: dict[str, Any] | None
    ) -> None:
        meta = new["metadata"]
        if old is None:
            meta["uid"] = f"uid-{key[2]}-{self._version}"
            meta["generation"] = 1
            meta["creationTimestamp"] = self.clock.timestamp
            return
        for field in ("uid", "generation", "creationTimestamp"):
            meta[field] = old["metadata"][field]
        if "status" in old:
            new["status"] = old["status"]
        if new.get("spec") != old.get("spec"):
            meta["generation"] += 1

    def _stored(self, verb: str, key: tuple[Kind, str, str], new: dict[str, Any]) -> Object:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = new
        self._tell(verb, key[0], key[2], new)
        return copy.deepcopy(new)

    def _tell(self, verb: str, kind: Kind, name: str, found: dict[str, Any]) -> None:
        self.changes.append((verb, kind.name, name))
        if self.on_change is not None:
            self.on_change(kind, found)

    def _refuse(self, kind: Kind) -> None:
        status = self.refused.get(kind)
        if status is not None:
            message = f"{kind.name}: {status}"
            raise ApiUnavailable(message) if status >= 500 else ApiRejected(status, message)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
