"""Nothing is changed without the Lease: a Cluster that asks the guard before every change."""

from collections.abc import Callable, Mapping, Sequence

from kvserving_operator.cluster import Cluster
from kvserving_operator.kinds import Kind, Object


class FencedCluster:
    """Reads freely; changes only while `may_act` does not raise."""

    def __init__(self, cluster: Cluster, may_act: Callable[[], None]) -> None:
        self._cluster = cluster
        self._may_act = may_act

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None where there is none."""
        return await self._cluster.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> Sequence[Object]:
        """Objects with these labels."""
        return await self._cluster.list(kind, namespace, labels)

    async def apply(self, manifest: Object, subresource: str | None = None) -> Object:
        """Server-side apply, while holding the Lease."""
        self._may_act()
        return await self._cluster.apply(manifest, subresource)

    async def create(self, manifest: Object) -> Object:
        """Create, while holding the Lease."""
        self._may_act()
        return await self._cluster.create(manifest)

    async def replace(self, manifest: Object) -> Object:
        """Replace, while holding the Lease."""
        self._may_act()
        return await self._cluster.replace(manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete, while holding the Lease."""
        self._may_act()
        await self._cluster.delete(kind, namespace, name, uid)

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Object) -> None:
        """Merge a part of the status, while holding the Lease."""
        self._may_act()
        await self._cluster.patch_status(kind, namespace, name, status)

    async def patch_labels(
        self, kind: Kind, namespace: str, name: str, labels: Mapping[str, str]
    ) -> None:
        """Set labels, while holding the Lease."""
        self._may_act()
        await self._cluster.patch_labels(kind, namespace, name, labels)
