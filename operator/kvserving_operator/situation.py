"""What a roll-out step is decided on."""

from dataclasses import dataclass, field

from kvserving_operator.api.v1alpha1 import KVCacheDType, KVServingSpec
from kvserving_operator.live import KVSettings
from kvserving_operator.observe import CheckView, PodView
from kvserving_operator.render.names import ServingRef
from kvserving_operator.revisions import RevisionState
from kvserving_operator.settings import Settings
from kvserving_operator.trials.record import Trials


@dataclass(frozen=True)
class Situation:
    """One KVServing at one moment."""

    ref: ServingRef
    spec: KVServingSpec
    """What new pods are made for; its `kvCache` is what they start with."""
    asked: KVSettings
    """`kvCache` of the spec as the user wrote it."""
    state: RevisionState
    pods: tuple[PodView, ...]
    checks: tuple[CheckView, ...]
    retry: str
    """Value of the retry annotation."""
    now: float
    """Seconds since the epoch."""
    settings: Settings
    tried: tuple[KVCacheDType, ...] = ()
    """Formats that may be tried on the pods later, so that their blocks have to allow them."""
    missing: str = ""
    """What the spec names and does not exist, which engines would wait for; empty for nothing."""
    trials: Trials = field(default_factory=Trials)
    """The trial under way, and templates that one has turned down."""
