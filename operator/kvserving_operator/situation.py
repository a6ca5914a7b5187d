"""What a roll-out step is decided on."""

from dataclasses import dataclass

from kvserving_operator.api.v1alpha1 import KVServingSpec
from kvserving_operator.observe import CheckView, PodView
from kvserving_operator.render.names import ServingRef
from kvserving_operator.revisions import RevisionState
from kvserving_operator.settings import Settings


@dataclass(frozen=True)
class Situation:
    """One KVServing at one moment."""

    ref: ServingRef
    spec: KVServingSpec
    state: RevisionState
    pods: tuple[PodView, ...]
    checks: tuple[CheckView, ...]
    retry: str
    """Value of the retry annotation."""
    now: float
    """Seconds since the epoch."""
    settings: Settings
    missing: str = ""
    """What the spec names and does not exist, which engines would wait for; empty for nothing."""
