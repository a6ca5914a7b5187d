"""What Kubernetes asks of a caller's roles for each call, as RBAC counts it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvserving_operator.cluster import Cluster
from kvserving_operator.errors import ApiRejected
from kvserving_operator.kinds import Kind, Object, kind_of


@dataclass(frozen=True, order=True)
class Right:
    """One verb of one resource."""

    group: str
    resource: str
    """Plural, with a subresource as `pods/status`."""
    verb: str

    def __str__(self) -> str:
        return f"{self.group or 'core'}/{self.resource}:{self.verb}"


def rights_in(rules: Iterable[Mapping[str, Any]]) -> list[Right]:
    """Rights that rules of roles give, in order, repeated ones too."""
    return sorted(
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def owning(manifest: Object) -> set[Right]:
    """What admission asks for besides: an owner whose deletion waits needs its finalizers set.

    Source: the admission plugin OwnerReferencesPermissionEnforcement, which OpenShift has on.
    """
    return {
        right(Kind[owner["kind"]], "update", "finalizers")
        for owner in manifest["metadata"].get("ownerReferences", ())
        if owner.get("blockOwnerDeletion")
    }


class GuardedCluster:
    """A Cluster whose caller has the rights `granted`; notes what was asked for and refused."""

    def __init__(self, cluster: Cluster, granted: Collection[Right] | None = None) -> None:
        self._cluster = cluster
        self._granted = granted
        self.asked: set[Right] = set()
        self.refused: set[Right] = set()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        self._need(right(kind, "get"))
        return await self._cluster.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> Sequence[Object]:
        """Objects with these labels."""
        self._need(right(kind, "list"))
        return await self._cluster.list(kind, namespace, labels)

    async def apply(self, manifest: Object, subresource: str | None = None) -> Object:
        """Apply: `patch`, and `create` besides where there is no such object yet."""
        kind, meta = kind_of(manifest), manifest["metadata"]
        needed = {right(kind, "patch", subresource)} | owning(manifest)
        stored = await self._cluster.get(kind, meta["namespace"], meta["name"])
        if subresource is None and stored is None:
            needed.add(right(kind, "create"))
        self._need(*needed)
        return await self._cluster.apply(manifest, subresource)

    async def create(self, manifest: Object) -> Object:
        """Create."""
        self._need(right(kind_of(manifest), "create"), *owning(manifest))
        return await self._cluster.create(manifest)

    async def replace(self, manifest: Object) -> Object:
        """Replace."""
        self._need(right(kind_of(manifest), "update"))
        return await self._cluster.replace(manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete."""
        self._need(right(kind, "delete"))
        await self._cluster.delete(kind, namespace, name, uid)

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Object) -> None:
        """Merge a part of the status."""
        self._need(right(kind, "patch", "status"))
        await self._cluster.patch_status(kind, namespace, name, status)

    async def patch_labels(
        self, kind: Kind, namespace: str, name: str, labels: Mapping[str, str]
    ) -> None:
        """Set labels."""
        self._need(right(kind, "patch"))
        await self._cluster.patch_labels(kind, namespace, name, labels)

    def _need(self, *needed: Right) -> None:
        self.asked |= set(needed)
        missing = set() if self._granted is None else set(needed) - set(self._granted)
        if missing:
            self.refused |= missing
            raise ApiRejected(403, f"forbidden: {', '.join(map(str, sorted(missing)))}")


def right(kind: Kind, verb: str, subresource: str | None = None) -> Right:
    """Right to one verb of a kind."""
    group = kind.api_version.rpartition("/")[0]
    resource = kind.value.plural + (f"/{subresource}" if subresource else "")
    return Right(group, resource, verb)
