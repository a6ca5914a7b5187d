"""What the cluster says of a route, its policy and its endpoints, as small frozen views; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvserving_operator.kinds import Object
from kvserving_operator.render.names import CANDIDATE, ServingRef

ENVOY_GATEWAY = "gateway.envoyproxy.io/gatewayclass-controller"
"""Controller whose policies can keep sessions."""


@dataclass(frozen=True)
class RouteView:
    """The HTTPRoute as stored, and what the controller of its gateway makes of it."""

    weight: int = 0
    """Percent for the candidates."""
    clusters: bool = False
    controller: str = ""
    """Empty while none has answered."""
    accepted: bool = False
    acknowledged: bool = True
    """Whether the answer is about the present version; true where a controller does not say."""
    problem: str = ""
    """What the controller says against it."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether this controller's weighted clusters can follow a header."""
        return self.controller == ENVOY_GATEWAY


def route_view(ref: ServingRef, stored: Object, parent: Mapping[str, Any]) -> RouteView:
    """Read an HTTPRoute and the answer of one of its parents."""
    rules = (stored.get("spec") or {}).get("rules") or [{}]
    backends: Sequence[Mapping[str, Any]] = rules[0].get("backendRefs") or ()
    name = ref.arm_service(CANDIDATE)
    weight = next((int(b.get("weight", 1)) for b in backends if b.get("name") == name), 0)
    view = RouteView(weight, any(b.get("filters") for b in backends))
    parents: Iterable[Mapping[str, Any]] = (stored.get("status") or {}).get("parents") or ()
    answer = next((each for each in parents if _same(each["parentRef"], parent, ref)), None)
    if answer is None:
        return view
    conditions = {c["type"]: c for c in answer.get("conditions") or ()}
    faults = [
        f"{c.get('reason', type)}: {c.get('message', '')}".rstrip(": ")
        for type in ("Accepted", "ResolvedRefs")
        if (c := conditions.get(type)) and c.get("status") == "False"
    ]
    accepted = conditions.get("Accepted", {})
    generation = int(stored["metadata"].get("generation", 0))
    return RouteView(
        view.weight,
        view.clusters,
        controller=str(answer.get("controllerName", "")),
        accepted=accepted.get("status") == "True" and not faults,
        acknowledged=int(accepted.get("observedGeneration", generation)) >= generation,
        problem="; ".join(faults),
    )


def _same(found: Mapping[str, Any], parent: Mapping[str, Any], ref: ServingRef) -> bool:
    """Whether an answer is about this parent."""
    return (
        found.get("name") == parent["name"]
        and found.get("namespace", ref.namespace) == parent["namespace"]
        and found.get("sectionName") == parent.get("sectionName")
    )


def policy_problem(stored: Object) -> str:
    """What a controller says against a session policy; empty for nothing."""
    ancestors: Iterable[Mapping[str, Any]] = (stored.get("status") or {}).get("ancestors") or ()
    for ancestor in ancestors:
        for condition in ancestor.get("conditions") or ():
            if (condition["type"], condition["status"]) == ("Accepted", "False"):
                return str(condition.get("message") or condition.get("reason"))
    return ""


def ready_endpoints(slices: Iterable[Object]) -> frozenset[str]:
    """Pods to which a Service leads."""
    return frozenset(
        endpoint["targetRef"]["name"]
        for found in slices
        for endpoint in found.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True) and "targetRef" in endpoint
    )


def covers(stored: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is stored: an API server adds defaults of its own."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(
            name in stored and covers(stored[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(stored, list | tuple)
            and len(stored) == len(wanted)
            and all(map(covers, stored, wanted))
        )
    return bool(stored == wanted)
