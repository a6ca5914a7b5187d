"""Whether users' sessions can be kept on their side of a trial, and why not; pure."""

from dataclasses import dataclass

from kvserving_operator.api.v1alpha1 import RoutingSpec, SplitBy
from kvserving_operator.traffic.view import RouteView


@dataclass(frozen=True)
class Keeping:
    """Header that sessions are kept by, or why they are not."""

    header: str = ""
    why_not: str = ""


def keeping(routing: RoutingSpec, split_by: SplitBy, route: RouteView) -> Keeping:
    """What routing and policy ask for, as far as the gateway's controller can do it."""
    if routing.session_header is None:
        return Keeping(why_not="spec.routing.sessionHeader names no session")
    if split_by is SplitBy.REQUEST:
        return Keeping(why_not="the policy's ab.splitBy is Request")
    if not route.controller:
        return Keeping(why_not="no controller has answered yet")
    if not route.keeps_sessions:
        why_not = f"{route.controller} cannot keep them by a header, only Envoy Gateway can"
        return Keeping(why_not=why_not)
    return Keeping(routing.session_header)
