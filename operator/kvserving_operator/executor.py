"""Carries out what the pure parts decided.

The memory is written first and the Deployment last: a crash in between repeats a step and never
forgets one.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from kvserving_operator.actions import Action, Announce, CreateOnce, Delete
from kvserving_operator.api.conditions import timestamp
from kvserving_operator.api.v1alpha1 import KVServing, KVServingStatus
from kvserving_operator.cluster import Cluster, apply_status
from kvserving_operator.errors import ApiRejected, Conflict
from kvserving_operator.kinds import Kind, Object
from kvserving_operator.memory import Memory
from kvserving_operator.observe import deployment_view
from kvserving_operator.promoted import Gate
from kvserving_operator.render.children import (
    candidates,
    children,
    deployment,
    token_of,
    token_secret,
)
from kvserving_operator.render.names import SETTINGS_GATE, ServingRef
from kvserving_operator.rollout import Step
from kvserving_operator.session import Session
from kvserving_operator.settings import Settings

logger = logging.getLogger(__name__)

Announcer = Callable[[Object, Announce], None]
"""Posts an Event on an object."""


class StatusWriter:
    """Writes the status of one object, and only what differs from what it wrote or read last."""

    def __init__(self, cluster: Cluster, body: Object, stored: KVServingStatus) -> None:
        self._cluster = cluster
        self._body = body
        self.stored = stored
        self.writes = 0

    async def write(self, status: KVServingStatus) -> None:
        """Store a status."""
        if status.to_api() == self.stored.to_api():
            return
        meta = self._body["metadata"]
        where = meta["namespace"], meta["name"]
        await apply_status(self._cluster, Kind.KVServing, *where, status.to_api())
        self.stored = status
        self.writes += 1


def is_owned(found: Object | None, ref: ServingRef) -> bool:
    """Whether an object is a child of a KVServing; False for none."""
    owners = () if found is None else found["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == ref.uid for owner in owners)


class Executor:
    """Makes the cluster look as decided."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        announce: Announcer,
        monotonic: Callable[[], float],
        new_token: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._announce = announce
        self._monotonic = monotonic
        self._new_token = new_token

    async def carry_out(
        self,
        session: Session,
        ref: ServingRef,
        body: Object,
        serving: KVServing,
        step: Step,
        existing: Object | None,
    ) -> None:
        """Do what a roll-out step asks for, and keep the children as they should be."""
        routed = serving.spec.routing is not None
        resync = self._monotonic() >= session.resync_at or routed != session.routed
        if resync:
            await self._learn_token(session, ref)
            for manifest in children(ref, routed=routed):
                await self._cluster.apply(manifest)
            session.routed = routed
        memory = session.memory.model_copy(update={"revisions": step.state})
        await self.remember(session, ref, memory, force=resync)
        for action in step.actions:
            await self._act(action, ref, body)
        await self._apply_deployment(session, ref, serving, step, existing, resync)
        await self._apply_candidates(session, ref, serving, step)
        if resync:
            session.resync_at = self._monotonic() + self._settings.resync_seconds

    async def remember(
        self, session: Session, ref: ServingRef, memory: Memory, force: bool = False
    ) -> None:
        """Keep a memory, and store it where that is worth a write."""
        if force or session.stored is None or memory.worth_storing(session.stored):
            await self._cluster.apply(memory.manifest(ref))
            session.stored = memory
        session.memory = memory

    async def set_gates(self, ref: ServingRef, gates: Iterable[Gate], now: float) -> None:
        """Open or close readiness gates."""
        moment = timestamp(datetime.fromtimestamp(now, UTC))
        for gate in gates:
            condition = {
                "type": SETTINGS_GATE,
                "status": "True" if gate.open else "False",
                "reason": "SettingsApplied" if gate.open else "SettingsPending",
                "message": gate.message,
                "lastTransitionTime": moment,
            }
            status = {"conditions": [condition]}
            await self._cluster.patch_status(Kind.Pod, ref.namespace, gate.pod, status)

    async def _act(self, action: Action, ref: ServingRef, body: Object) -> None:
        match action:
            case CreateOnce(manifest):
                try:
                    await self._cluster.create(manifest)
                except Conflict:
                    logger.debug("%s exists already", manifest["metadata"]["name"])
            case Delete(kind, name, uid):
                await self._cluster.delete(kind, ref.namespace, name, uid)
            case Announce():
                self._announce(body, action)

    async def _apply_deployment(
        self,
        session: Session,
        ref: ServingRef,
        serving: KVServing,
        step: Step,
        existing: Object | None,
        resync: bool,
    ) -> None:
        current = step.state.current
        if current is None:
            return
        replicas = 0 if step.stopped else serving.spec.replicas
        if step.state.candidates is not None:
            replicas = max(0, replicas - step.state.candidates.freed)
        if existing is not None and not resync:
            stored = deployment_view(existing)
            as_wanted = (
                stored.revision == current.hash
                and stored.replicas == replicas
                and stored.inputs_hash == current.inputs_hash
                and stored.generation == session.deployment_generation
            )
            if as_wanted:
                return
        applied = await self._cluster.apply(
            deployment(ref, current.template, serving.spec, replicas, current.inputs)
        )
        session.deployment_generation = deployment_view(applied).generation

    async def _apply_candidates(
        self, session: Session, ref: ServingRef, serving: KVServing, step: Step
    ) -> None:
        """Keep the Deployment of a trial's own pods, after the one whose place they take."""
        wanted, kind = step.state.candidates, Kind.Deployment
        if wanted is None and not session.has_candidates:
            return
        name = ref.candidates_deployment
        found = await self._cluster.get(kind, ref.namespace, name)
        if wanted is None:
            if found is not None and is_owned(found, ref):
                await self._cluster.delete(kind, ref.namespace, name, found["metadata"]["uid"])
            session.has_candidates = False
            return
        session.has_candidates = True
        if found is not None:
            if not is_owned(found, ref):
                message = f"Deployment {name} exists, and is not of KVServing {ref.name}"
                raise ApiRejected(409, message)
            stored = deployment_view(found)
            if (stored.revision, stored.replicas) == (wanted.revision.hash, wanted.pods):
                return
        revision = wanted.revision
        await self._cluster.apply(
            candidates(ref, revision.template, serving.spec, wanted.pods, revision.inputs)
        )

    async def _learn_token(self, session: Session, ref: ServingRef) -> None:
        """Read the token, or make it: once, as running engines keep the one they began with."""
        secret = await self._cluster.get(Kind.Secret, ref.namespace, ref.token_secret)
        if secret is None:
            manifest = token_secret(ref, self._new_token)
            try:
                await self._cluster.create(manifest)
            except Conflict:
                logger.debug("%s exists already", ref.token_secret)
            secret = await self._cluster.get(Kind.Secret, ref.namespace, ref.token_secret)
        session.token = token_of(secret) if secret is not None else None
