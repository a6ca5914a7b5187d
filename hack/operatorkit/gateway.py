"""A gateway's controller and its proxy, as far as routes depend on them, and what users meet."""

from dataclasses import dataclass, field
from typing import Any

from kvserving_operator.kinds import Kind
from kvserving_operator.traffic.view import ENVOY_GATEWAY
from operatorkit.cluster import MemoryCluster
from operatorkit.specs import NAME, NAMESPACE

ROUTING: dict[str, Any] = {"gatewayRef": {"name": "gw"}}


@dataclass
class Proxy:
    """Takes routes up as soon as they change, and notes what goes wrong with any state."""

    cluster: MemoryCluster
    controller: str | None = ENVOY_GATEWAY
    """None for a gateway that does not exist."""
    refusal: str = ""
    answers: bool = True
    """Whether it takes new versions up now."""
    weights: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster.on_change = self._changed

    @property
    def route(self) -> dict[str, Any]:
        """The HTTPRoute as stored."""
        return self.cluster.of(Kind.HTTPRoute)[NAME]

    @property
    def weight(self) -> int:
        """Percent for the candidates, with both of a route's backends in their order."""
        stable, candidate = self.route["spec"]["rules"][0]["backendRefs"]
        if (stable["name"], candidate["name"]) != (f"{NAME}-stable", f"{NAME}-candidate"):
            self.faults.append(f"{stable['name']} and {candidate['name']} for arms")
        weight: int = candidate["weight"]
        if stable["weight"] + weight != 100:
            self.faults.append(f"{stable['weight']} and {weight} are not 100 %")
        return weight

    def arm(self, track: str) -> list[str]:
        """Ready pods of a track."""
        return [
            name
            for name, pod in self.cluster.of(Kind.Pod).items()
            if pod["metadata"]["labels"].get("kvserving.dev/track") == track
            and any(
                (c["type"], c["status"]) == ("Ready", "True")
                for c in pod.get("status", {}).get("conditions", [])
            )
        ]

    def take_up(self) -> None:
        """Answer the present version of the route."""
        found = self.cluster.objects.get((Kind.HTTPRoute, NAMESPACE, NAME))
        if found is None or not self.answers:
            return
        if self.controller is None:
            found.pop("status", None)
            return
        accepted = {
            "type": "Accepted",
            "status": "False" if self.refusal else "True",
            "reason": self.refusal or "Accepted",
            "message": "",
            "observedGeneration": found["metadata"]["generation"],
        }
        reference = found["spec"]["parentRefs"][0]
        answer = {
            "parentRef": dict(reference),
            "controllerName": self.controller,
            "conditions": [accepted],
        }
        found["status"] = {"parents": [answer]}

    def _changed(self, kind: Kind, found: dict[str, Any]) -> None:
        if kind is Kind.HTTPRoute:
            self.take_up()
            self._note_weight()
        if kind in (Kind.HTTPRoute, Kind.BackendTrafficPolicy, Kind.Pod):
            self._judge()

    def _note_weight(self) -> None:
        last = self.weights[-1] if self.weights else None
        if self.weight == last:
            return
        clusters = "filters" in self.route["spec"]["rules"][0]["backendRefs"][0]
        if clusters and last is not None and 0 in (last, self.weight) and last + self.weight > 1:
            self.faults.append(f"a cluster between {last} and {self.weight} without warmth")
        self.weights.append(self.weight)

    def _judge(self) -> None:
        if (Kind.HTTPRoute, NAMESPACE, NAME) not in self.cluster.objects:
            return
        clusters = "filters" in self.route["spec"]["rules"][0]["backendRefs"][0]
        if self.cluster.of(Kind.BackendTrafficPolicy) and not clusters:
            self.faults.append("a hash over one cluster puts its weights out of force")
        if self.weight and not self.arm("candidate"):
            self.faults.append(f"{self.weight} % for nobody")
        if self.weight < 100 and not self.arm("stable") and self.arm("candidate"):
            self.faults.append("nobody is left in the stable arm")
