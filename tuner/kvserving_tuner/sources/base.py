"""The protocol every source of observations follows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvserving_tuner.observation import Observation


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """One engine, reachable at `url` (scheme, host, port); `token` opens its runtime API."""

    name: str
    url: str
    token: str | None = field(default=None, repr=False)


class Source(Protocol):
    """Turns engines into observations and keeps the windows it needs between calls."""

    async def observe(self, targets: Sequence[EngineTarget], now: float) -> Observation:
        """Observe `targets` at `now` (seconds since the epoch).

        A target that is down, unreadable or stale is named in the observation's problems; this
        never raises for it. Targets that are no longer listed are forgotten.
        """
        ...
