"""One operator at a time: a `coordination.k8s.io` Lease that is asked before every change.

kopf's peering is not a lock (two peers may both pause or, after a partition, both act), and
deleting a pod does not prove that its process stopped. A holder therefore counts itself as holding
only for a part of the Lease's duration after its own last successful renewal, measured on its own
monotonic clock; a challenger waits the whole duration, measured on its own clock, since it last saw
the Lease change. Wall clocks are never compared.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvserving_operator.cluster import Cluster
from kvserving_operator.errors import Conflict, LeaseLost, OperatorError
from kvserving_operator.kinds import Kind, Object

logger = logging.getLogger(__name__)

HOLD_SHARE = 2 / 3
"""A holder stops acting after this share of the duration without a renewal; a call under way has
the rest to end in."""
RENEW_SHARE = 1 / 5
"""Pause between renewals as a share of the duration: three may fail before the holder stops."""


@dataclass(frozen=True)
class LeaseSettings:
    """Which Lease, for how long, and under which name."""

    namespace: str
    name: str
    identity: str
    duration_seconds: float


class LeaseGuard:
    """Acquires, renews and releases the Lease, and answers whether this process may act."""

    def __init__(
        self,
        cluster: Cluster,
        settings: LeaseSettings,
        monotonic: Callable[[], float],
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._renewed_at: float | None = None
        self._seen: tuple[str, float] | None = None

    @property
    def held(self) -> bool:
        """Whether this process may act right now."""
        if self._renewed_at is None:
            return False
        age = self._monotonic() - self._renewed_at
        return age < self._settings.duration_seconds * HOLD_SHARE

    def ensure_held(self) -> None:
        """Raise LeaseLost unless this process may act right now."""
        if not self.held:
            raise LeaseLost(
                f"Lease {self._settings.namespace}/{self._settings.name}: "
                f"not held by {self._settings.identity} any more"
            )

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        announced: str | None = None
        while True:
            holder = await self._try_hold()
            if holder is None:
                logger.info("lease acquired", extra={"identity": self._settings.identity})
                return
            if holder != announced:
                logger.info("waiting for the lease", extra={"holder": holder})
                announced = holder
            await self._sleep(self._settings.duration_seconds * RENEW_SHARE)

    async def keep(self) -> None:
        """Renew for ever; returns only when the Lease is lost."""
        while True:
            await self._sleep(self._settings.duration_seconds * RENEW_SHARE)
            holder = await self._try_hold()
            if holder is not None and (holder != UNREACHABLE or not self.held):
                self._renewed_at = None
                logger.error("lease lost", extra={"holder": holder})
                return

    async def release(self) -> None:
        """Give the Lease up, so that a successor need not wait for it to expire."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            lease = await self._read()
            if lease is not None and _holder(lease) == self._settings.identity:
                await self._cluster.replace(self._document(lease, holder=""))
        except OperatorError as error:
            logger.warning("lease not released: %s", error)

    async def _try_hold(self) -> str | None:
        """Take or renew the Lease; None when ours, else who holds it."""
        started = self._monotonic()
        try:
            lease = await self._read()
            if lease is None:
                await self._cluster.create(self._document(None, holder=self._settings.identity))
            else:
                holder = _holder(lease)
                if holder not in ("", self._settings.identity) and not self._expired(lease):
                    return holder
                await self._cluster.replace(self._document(lease, holder=self._settings.identity))
        except Conflict:
            return CONTENDED
        except OperatorError as error:
            logger.warning("lease not renewed: %s", error)
            return UNREACHABLE
        # Counted from before the call: the server may have stored it just after we asked.
        self._renewed_at = started
        return None

    async def _read(self) -> Object | None:
        return await self._cluster.get(Kind.Lease, self._settings.namespace, self._settings.name)

    def _expired(self, lease: Object) -> bool:
        """Whether the holder has not renewed for a whole duration of our own clock."""
        version = str(lease["metadata"].get("resourceVersion", ""))
        now = self._monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
            return False
        duration = float(
            lease["spec"].get("leaseDurationSeconds") or self._settings.duration_seconds
        )
        return now - self._seen[1] >= duration

    def _document(self, previous: Object | None, holder: str) -> dict[str, Any]:
        now = self._wall_clock().isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = dict(previous["spec"]) if previous else {}
        changed = spec.get("holderIdentity") != holder
        metadata: dict[str, Any] = {
            "namespace": self._settings.namespace,
            "name": self._settings.name,
        }
        if previous:
            metadata["resourceVersion"] = previous["metadata"]["resourceVersion"]
        return {
            "apiVersion": Kind.Lease.api_version,
            "kind": Kind.Lease.name,
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._settings.duration_seconds)),
                "renewTime": now,
                "acquireTime": now if changed else spec.get("acquireTime", now),
                "leaseTransitions": int(spec.get("leaseTransitions", 0)) + int(changed),
            },
        }


UNREACHABLE = "(the Kubernetes API does not answer, or refuses)"
CONTENDED = "(another process wrote it at the same time)"


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
