"""The protocol every source of observations follows, and the histories all of them keep."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvserving_tuner.assembly import observe, observe_engine
from kvserving_tuner.epochs import History
from kvserving_tuner.observation import Observation, Problem
from kvserving_tuner.scrape import Scrape
from kvserving_tuner.settings import Thresholds, Windows
from kvserving_tuner.snapshot import take


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """One engine, reachable at `url` (scheme, host, port).

    `token` opens its runtime API, and `api_key` what its users ask, where that needs a key.
    """

    name: str
    url: str
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)


class Source(Protocol):
    """Turns engines into observations and keeps the windows it needs between calls."""

    async def observe(self, targets: Sequence[EngineTarget], now: float) -> Observation:
        """Observe `targets` at `now` (seconds since the epoch).

        A target that is down, unreadable or stale is named in the observation's problems; this
        never raises for it. Targets that are no longer listed are forgotten.
        """
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt to read a target gave: scrapes, oldest first, or why there are none."""

    scrapes: tuple[Scrape, ...] = ()
    failure: str | None = None


class Histories:
    """One history per target; turns what was read into an observation."""

    def __init__(
        self, windows: Windows | None = None, thresholds: Thresholds | None = None
    ) -> None:
        self._windows = windows or Windows()
        self._thresholds = thresholds or Thresholds()
        self._of: dict[str, History] = {}

    @property
    def windows(self) -> Windows:
        """How long these histories look back."""
        return self._windows

    def newest_at(self, target: str) -> float | None:
        """Time of the newest sample of `target`, None if there is none."""
        newest = self._of[target].newest if target in self._of else None
        return newest.at if newest else None

    def update(
        self,
        targets: Sequence[EngineTarget],
        read: Mapping[str, Attempt],
        now: float,
        problems: Iterable[Problem] = (),
    ) -> Observation:
        """Take in what was read of each target and observe all of them."""
        self._of = {
            target.name: self._of.get(target.name) or History(self._windows) for target in targets
        }
        engines, found = [], list(problems)
        for target in targets:
            history = self._of[target.name]
            outcome = read.get(target.name, Attempt(failure="not read"))
            for scrape in outcome.scrapes:
                history.add(take(scrape), now)
            engine, its_problems = observe_engine(
                target.name, history, self._windows, now, outcome.failure
            )
            engines.append(engine)
            found += its_problems
        return observe(now, engines, found, self._thresholds)
