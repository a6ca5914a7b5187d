"""What the operator keeps in its process about one KVServing between two looks at it."""

import asyncio
from dataclasses import dataclass, field

from kvserving_operator.memory import Memory
from kvserving_operator.switching import Switcher
from kvserving_operator.trials.runner import TrialRunner
from kvserving_operator.tuning import ServingTuner


@dataclass
class Session:
    """Can be rebuilt from the cluster; `uid` tells a re-made object from its namesake."""

    uid: str
    tuner: ServingTuner
    switcher: Switcher
    trials: TrialRunner
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    memory: Memory = field(default_factory=Memory)
    stored: Memory | None = None
    """Memory as last written or read; None before the first look."""
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    """Key of `spec.apiKeyRef`, as last read."""
    resync_at: float = 0.0
    """When every child is applied again, on the monotonic clock."""
    routed: bool = False
    """Whether the Services of the tracks were among the children at the last resync."""
    deployment_generation: int | None = None
    """Generation of the Deployment after our last apply: another one means a foreign edit."""
    has_candidates: bool = True
    """Whether there may be a Deployment of a trial's own pods."""
