"""What is seen at one look: all that a trial's next state follows from."""

from dataclasses import dataclass
from enum import StrEnum

from kvserving_tuner.judge import HardStop, Split


class Wish(StrEnum):
    """What a person asks of a trial."""

    RUN = "Run"
    PAUSE = "Pause"
    PROMOTE = "Promote"
    """Approve: promote as soon as it has passed."""
    ROLL_BACK = "RollBack"


@dataclass(frozen=True)
class Facts:
    """What is seen at one look; pods by name."""

    now: float
    ready: tuple[str, ...]
    """Pods that answer completions."""
    changed: frozenset[str]
    """Pods that report the candidate's settings."""
    settled: bool
    """Whether every pod reports what it is to have."""
    steady: bool = True
    """Whether no pods are being replaced."""
    own: frozenset[str] | None = None
    """Pods that were started with the change; None where pods that run take it."""
    replicas: int = 0
    """Engines that the service is to have, where pods are started for the change."""
    unstartable: str = ""
    """Why no engine comes up with the change; empty while one may."""
    no_room: str = ""
    """Why the only engine cannot have another one beside it; empty where it can."""
    offered: bool = True
    """Whether the engines take the change live."""
    unoffered: str = ""
    """What they say against it where they do not."""
    finished: float = 0.0
    """Requests that pods with the change have finished since the last look."""
    probing: bool = False
    """Whether a probe or a task of the trial is under way."""
    in_flight: float | None = None
    """Requests that candidates have, running or waiting; None where it is not known."""
    queue: float | None = None
    """Requests that wait at a candidate, in the mean, and at any other engine."""
    others_queue: float | None = None
    blocked: str = ""
    """Why nothing that is measured now can be used; empty where it can."""
    unanswered_seconds: float = 0.0
    """For how long the probe that is under way has not been answered."""
    refused: str = ""
    """What an engine said that could not take the change."""
    split: Split | None = None
    """Requests that the arms got where a share of them was promised."""
    hard_stop: HardStop | None = None
    superseded: str = ""
    """Why the change is not wanted any more."""
    wish: Wish = Wish.RUN
    prompts: int = 0
    """Prompts of the probe set."""
    recorded: bool = True
    """Whether all answers are there that have to be given before any pod has the change."""
    tasks: tuple[str, ...] = ()
    """Criteria of task probes that have to be shown to be kept; others can only roll back."""
    tasks_left: bool = False
    """Whether there is a task to ask that would tell more."""

    @property
    def engines(self) -> int:
        """Engines that a step takes its share of."""
        # An only engine is tried beside another one where pods are started for the change.
        return len(self.ready) if self.own is None else max(2, self.replicas)
