"""Keeps the HTTPRoute and the session policy as they should be, and says what became of them."""

from dataclasses import dataclass, field
from typing import Any

from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import RoutingSpec, SplitBy
from kvserving_operator.cluster import Cluster
from kvserving_operator.errors import ApiRejected
from kvserving_operator.kinds import Kind, Object
from kvserving_operator.render.names import INPUTS_ANNOTATION, ServingRef
from kvserving_operator.render.route import parent, route, session_policy
from kvserving_operator.traffic.sessions import Keeping, keeping
from kvserving_operator.traffic.view import RouteView, covers, policy_problem, route_view

GRANT = "install the operator's chart with gateway.enabled=true"


@dataclass(frozen=True)
class Attachment:
    """Where the route stands with its gateway."""

    reason: Reason
    message: str
    route: RouteView = field(default_factory=RouteView)
    sessions_kept: bool = False
    sessions: str = ""
    """Why sessions are not kept."""

    @property
    def usable(self) -> bool:
        """Whether requests come in by the route, so that its weights count."""
        return self.reason is Reason.ROUTE_ACCEPTED

    @property
    def refused(self) -> bool:
        """Whether the route stands as it did, and cannot be changed."""
        return self.reason is Reason.ROUTE_REJECTED


class Gateway:
    """The objects of the Gateway API that a KVServing owns."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def attach(self, ref: ServingRef, routing: RoutingSpec, split_by: SplitBy) -> Attachment:
        """Have the route there, with the weights it has, and read what the controller says."""
        try:
            stored = await self._cluster.get(Kind.HTTPRoute, ref.namespace, ref.name)
            view = _view(ref, routing, stored)
            asked = keeping(routing, split_by, view)
            if view.clusters and not asked.header:
                # First: a hash puts the weights of a single cluster out of force.
                await self._cluster.delete(Kind.BackendTrafficPolicy, ref.namespace, ref.name)
            wanted = route(ref, routing, view.weight, clusters=bool(asked.header))
            if stored is None or not _stands(stored, wanted):
                stored = await self._cluster.apply(wanted)
                view = _view(ref, routing, stored)
        except ApiRejected as error:
            return _refused(error)
        kept, why_not = await self._keep(ref, asked)
        gateway = parent(ref, routing)
        name = f"Gateway {gateway['namespace']}/{gateway['name']}"
        if view.accepted:
            reason, message = Reason.ROUTE_ACCEPTED, f"{name} takes requests in"
        elif view.problem:
            reason, message = Reason.ROUTE_NOT_ACCEPTED, f"{name}: {view.problem}"
        else:
            reason = Reason.ROUTE_PENDING
            message = f"{name} does not exist, or its controller has not answered"
        return Attachment(reason, message, view, kept, why_not)

    async def weigh(
        self, ref: ServingRef, routing: RoutingSpec, weight: int, seen: Attachment
    ) -> None:
        """Give the candidates another share."""
        await self._cluster.apply(route(ref, routing, weight, clusters=seen.route.clusters))

    async def detach(self, ref: ServingRef) -> None:
        """Remove the route and the policy, as far as there are such kinds."""
        for kind in (Kind.BackendTrafficPolicy, Kind.HTTPRoute):
            await self._cluster.delete(kind, ref.namespace, ref.name)

    async def _keep(self, ref: ServingRef, asked: Keeping) -> tuple[bool, str]:
        """Have the session policy there; whether sessions are kept, and why not."""
        if not asked.header:
            return False, f"sessions are not kept: {asked.why_not}"
        kind, wanted = Kind.BackendTrafficPolicy, session_policy(ref, asked.header)
        try:
            stored = await self._cluster.get(kind, ref.namespace, ref.name)
            if stored is None or not covers(stored["spec"], wanted["spec"]):
                stored = await self._cluster.apply(wanted)
        except ApiRejected as error:
            return False, f"sessions are not kept: {error}"
        problem = policy_problem(stored)
        return not problem, f"sessions are not kept: {problem}" if problem else ""


def _view(ref: ServingRef, routing: RoutingSpec, stored: Object | None) -> RouteView:
    return RouteView() if stored is None else route_view(ref, stored, parent(ref, routing))


def _stands(stored: Object, wanted: Any) -> bool:
    """Whether the route is stored as wanted: what is not wanted any more shows in the hash."""
    annotations = stored["metadata"].get("annotations") or {}
    made_from = wanted["metadata"]["annotations"][INPUTS_ANNOTATION]
    same = annotations.get(INPUTS_ANNOTATION) == made_from
    return same and covers(stored["spec"], wanted["spec"])


def _refused(error: ApiRejected) -> Attachment:
    if error.status == 404:
        message = "the cluster has no HTTPRoutes: the Gateway API is not installed"
        return Attachment(Reason.GATEWAY_API_MISSING, message)
    hint = f"; {GRANT}" if error.status == 403 else ""
    return Attachment(Reason.ROUTE_REJECTED, f"{error}{hint}")
