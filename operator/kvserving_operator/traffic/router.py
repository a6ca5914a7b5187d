"""Moves pods between tracks and weights between Services, one safe step after another."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import KVServing, RoutingSpec, SplitBy
from kvserving_operator.cluster import Cluster
from kvserving_operator.errors import ApiRejected, Retryable
from kvserving_operator.kinds import Kind
from kvserving_operator.observe import PodView, is_check, pod_view
from kvserving_operator.render.names import (
    CANDIDATE,
    SERVING_LABEL,
    STABLE,
    TRACK_LABEL,
    ServingRef,
)
from kvserving_operator.traffic.arms import Wish, wish
from kvserving_operator.traffic.attachment import Attachment, Gateway
from kvserving_operator.traffic.load import demand
from kvserving_operator.traffic.report import Traffic
from kvserving_operator.traffic.stages import Stage, Standing, next_stage
from kvserving_operator.traffic.state import TrafficState
from kvserving_operator.traffic.view import ready_endpoints
from kvserving_operator.trials.record import Record
from kvserving_tuner.observation import Observation
from kvserving_tuner.runtime_client import RuntimeState

MOST_STAGES = 12
"""Steps at one look; what is left then is done at the next one."""
SERVICE_NAME_LABEL = "kubernetes.io/service-name"

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Situation:
    """What a look at one KVServing has found out, as far as traffic depends on it."""

    ref: ServingRef
    serving: KVServing
    pods: tuple[PodView, ...]
    record: Record | None
    split_by: SplitBy
    """Of the trial under way, else of the policy that the KVServing names."""
    runtime: Mapping[str, RuntimeState]
    observation: Observation | None
    state: TrafficState


class Router:
    """Looks after tracks and routes of any KVServing; nothing is kept between two looks."""

    def __init__(self, cluster: Cluster, sleep: Sleep = asyncio.sleep) -> None:
        self._cluster = cluster
        self._gateway = Gateway(cluster)
        self._sleep = sleep

    async def steer(self, situation: Situation) -> Traffic:
        """Take pods and weights as far towards the wish as is safe now.

        What the API refuses or fails is told, and pods and weights stay as they are: engines that
        have to give a change up do not wait for a gateway.
        """
        routing = situation.serving.spec.routing
        try:
            if routing is None:
                await self._detach(situation)
                return Traffic()
            return await self._steer(situation, routing)
        except (ApiRejected, Retryable) as error:
            return Traffic(situation.state, Reason.ROUTE_REJECTED, str(error))

    async def _steer(self, situation: Situation, routing: RoutingSpec) -> Traffic:
        ref, record = situation.ref, situation.record
        state, load = situation.state.of(record), demand(situation.observation)
        counted = False
        for _ in range(MOST_STAGES):
            seen = await self._gateway.attach(ref, routing, situation.split_by)
            if seen.refused:
                # Route and tracks stay as they are: pods that left an arm would leave its weight.
                return Traffic(state, seen.reason, seen.message)
            pods = await self._pods(ref)
            found = Wish()
            if seen.usable:
                found = wish(record, pods, situation.runtime, load, raised=state.raised)
            at = await self._standing(ref, pods, seen, found)
            if not counted:
                own = {} if record is None else record.own_tasks
                state, counted = state.counted(situation.observation, at.labelled, own), True
            update = {
                "routed": seen.usable,
                "raised": found.raised,
                "sessions_kept": seen.sessions_kept,
            }
            state = state.model_copy(update=update).under(at.weight)
            stage = next_stage(at, found)
            if stage is None:
                break
            await self._carry_out(ref, routing, stage, seen)
            if stage.weight is not None:
                state = state.under(stage.weight)
            await self._sleep(stage.pause_seconds)
        return Traffic(state, seen.reason, seen.message, found, seen.sessions_kept, seen.sessions)

    async def _detach(self, situation: Situation) -> None:
        """Without a gateway in the spec: what was made for one goes, and pods are one arm again."""
        ref = situation.ref
        if situation.state.attached:
            await self._gateway.detach(ref)
        # Those that were started for a trial go with it; and who has no gateway may not move pods.
        moved = frozenset(p.name for p in situation.pods if not p.stable and not p.apart)
        await self._label(ref, moved, STABLE)
        if situation.state.attached:
            for track in (STABLE, CANDIDATE):
                name = ref.arm_service(track)
                await self._cluster.delete(Kind.Service, ref.namespace, name)

    async def _pods(self, ref: ServingRef) -> tuple[PodView, ...]:
        """Engine pods that are not on their way out."""
        found = await self._cluster.list(Kind.Pod, ref.namespace, {SERVING_LABEL: ref.name})
        views = (pod_view(pod) for pod in found if not is_check(pod))
        return tuple(view for view in views if not view.deleting)

    async def _standing(
        self, ref: ServingRef, pods: Sequence[PodView], seen: Attachment, found: Wish
    ) -> Standing:
        labelled = frozenset(pod.name for pod in pods if not pod.stable)
        candidates = stable = frozenset[str]()
        if labelled or found.candidates or seen.route.weight:
            candidates = await self._endpoints(ref, CANDIDATE)
            stable = await self._endpoints(ref, STABLE)
        return Standing(
            labelled=labelled,
            candidate_ready=candidates,
            stable_ready=stable,
            weight=seen.route.weight,
            clusters=seen.route.clusters,
            # A controller that has refused the route, or is gone, will not take it up either.
            acknowledged=seen.route.acknowledged or not seen.usable,
        )

    async def _endpoints(self, ref: ServingRef, track: str) -> frozenset[str]:
        labels = {SERVICE_NAME_LABEL: ref.arm_service(track)}
        return ready_endpoints(await self._cluster.list(Kind.EndpointSlice, ref.namespace, labels))

    async def _carry_out(
        self, ref: ServingRef, routing: RoutingSpec, stage: Stage, seen: Attachment
    ) -> None:
        await self._label(ref, stage.to_candidate, CANDIDATE)
        await self._label(ref, stage.to_stable, STABLE)
        if stage.weight is not None:
            await self._gateway.weigh(ref, routing, stage.weight, seen)

    async def _label(self, ref: ServingRef, pods: frozenset[str], track: str) -> None:
        for name in sorted(pods):
            labels = {TRACK_LABEL: track}
            await self._cluster.patch_labels(Kind.Pod, ref.namespace, name, labels)
