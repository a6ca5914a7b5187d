"""Everything that a status is written from."""

from dataclasses import dataclass, field

from kvserving_operator.actions import Announce
from kvserving_operator.api.reasons import Reason
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.observe import PodView
from kvserving_operator.render.names import ServingRef
from kvserving_operator.rollout import Step
from kvserving_operator.switching import Switched
from kvserving_operator.traffic.report import Traffic
from kvserving_operator.trials.record import Trials
from kvserving_operator.trials.turn import Outcome
from kvserving_operator.tuning import Turn


@dataclass(frozen=True)
class Facts:
    """What one tick found out about a KVServing."""

    serving: KVServing
    ref: ServingRef
    pods: tuple[PodView, ...]
    step: Step
    turn: Turn
    switched: Switched
    now: float
    """Seconds since the epoch."""
    policy_problem: tuple[Reason, str] | None = None
    """Why the rollback policy that is named cannot be followed."""
    trials: Trials = field(default_factory=Trials)
    trial: Outcome | None = None
    """What became of the trials at this tick; None where they could not be looked at."""
    traffic: Traffic = field(default_factory=Traffic)
    shifts: tuple[Announce, ...] = ()
    """Events about users' requests that go elsewhere."""
    api_problem: str = ""
    """What the Kubernetes API refused, empty for nothing."""
    engines: tuple[PodView, ...] = field(init=False)
    """Pods that are not on their way out."""

    def __post_init__(self) -> None:
        alive = tuple(pod for pod in self.pods if not pod.deleting)
        object.__setattr__(self, "engines", alive)

    @property
    def ready(self) -> int:
        """Engines that answer completions."""
        return sum(pod.ready for pod in self.engines)
