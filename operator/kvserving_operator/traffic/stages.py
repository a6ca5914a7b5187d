"""The next small step from where pods and route stand to where they are to be; pure.

Each step is safe to stop after: whoever looks next, another process too, goes on from what the
cluster says. What is kept in every state between: no arm has a share and no pods that answer, a
pod leaves an arm after its share has gone, and the stable arm is never emptied.
"""

from dataclasses import dataclass

from kvserving_operator.traffic.arms import Wish

SPREAD_SECONDS = 0.3
"""Between two steps. Envoy Gateway sent the last request by former weights 0.12 s after a change
at most, and by former endpoints 0.09 s (n of 10 to 30)."""
WARM_SECONDS = 1.0
"""At 1 %, where tracks are clusters of their own: a cluster comes and goes with its weight, and
requests for one that a proxy does not know yet are answered with 500."""
FIRST_PERCENT = 1


@dataclass(frozen=True)
class Standing:
    """Where pods and route stand."""

    labelled: frozenset[str] = frozenset()
    """Pods on the candidates' track, on their way out or not."""
    candidate_ready: frozenset[str] = frozenset()
    """Pods to which the candidates' Service leads."""
    stable_ready: frozenset[str] = frozenset()
    weight: int = 0
    """Percent of the requests that the route gives to the candidates."""
    clusters: bool = False
    """Whether tracks are clusters of their own."""
    acknowledged: bool = True
    """Whether the gateway's controller has taken the present route up."""


@dataclass(frozen=True)
class Stage:
    """One step: labels first, then the weight; then a pause."""

    to_candidate: frozenset[str] = frozenset()
    to_stable: frozenset[str] = frozenset()
    weight: int | None = None
    pause_seconds: float = SPREAD_SECONDS

    @property
    def waits(self) -> bool:
        """Whether it only waits, for endpoints or for the gateway's controller."""
        return not self.to_candidate and not self.to_stable and self.weight is None


WAIT = Stage()


def next_stage(at: Standing, wish: Wish) -> Stage | None:
    """The step to take now; None where everything is as wished."""
    joining, leaving = wish.candidates - at.labelled, at.labelled - wish.candidates
    if at.weight and not at.candidate_ready:
        # Whoever is sent there gets an error.
        return Stage(weight=0)
    if leaving and not wish.candidates and not at.stable_ready:
        return Stage(to_stable=leaving, weight=0 if at.weight else None)
    weight = wish.weight if wish.takes else min(wish.weight, at.weight)
    if leaving and not at.candidate_ready - leaving:
        weight = 0
    if weight < at.weight:
        return _towards(at, weight)
    if not at.acknowledged:
        return WAIT
    if leaving:
        return Stage(to_stable=leaving)
    if joining:
        # Endpoints of pods that have just come back may be a moment behind.
        return Stage(to_candidate=joining) if at.stable_ready - joining else WAIT
    if weight > at.weight:
        return _towards(at, weight) if wish.candidates <= at.candidate_ready else WAIT
    return None


def _towards(at: Standing, weight: int) -> Stage:
    """The weight, or the one on the way that a proxy needs to come to know a cluster."""
    through = 0 in (at.weight, weight) and max(at.weight, weight) > FIRST_PERCENT
    if at.clusters and through:
        return Stage(weight=FIRST_PERCENT, pause_seconds=WARM_SECONDS)
    return Stage(weight=weight)
