"""Requests that each side of a trial got under one weight of the route, for the check of the split.

What arrives follows from the weight, what finishes also from how fast an engine is: so requests are
counted that have finished or that an engine has now.
"""

import math
from collections.abc import Collection, Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from kvserving_tuner.judge import Split
from kvserving_tuner.observation import EngineObservation, Observation
from kvserving_tuner.readings import Known

FINISHED_TOTAL = "finished"
"""Name of the observation's counter of finished requests."""
SETTLING_SECONDS = 30.0
"""Time after a change of the weight that does not count: metrics may be that old."""
MOST_REQUESTS = 5000.0
"""Requests at which counts are halved: what was wrong and is put right is forgotten in time."""


class Met(BaseModel):
    """What one engine had met with at a look."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    finished: float
    came: float
    """Finished requests and those that it has, without the trial's own."""

    @classmethod
    def by(cls, engine: EngineObservation, own: float) -> Self | None:
        """By an engine that has finished so many tasks of the trial; None where it is not known."""
        finished = engine.totals.get(FINISHED_TOTAL)
        readings = (finished, engine.running, engine.waiting)
        known = [each.value for each in readings if isinstance(each, Known)]
        if len(known) < len(readings):
            return None
        return cls(finished=known[0], came=math.fsum(known) - own)


class SplitCount(BaseModel):
    """Requests under one weight."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    began_at: float | None = None
    """First look under the weight, in seconds since the epoch."""
    met: Mapping[str, Met] = Field(default_factory=dict)
    """By engine, at the last look."""
    candidate: float = 0.0
    stable: float = 0.0

    def counted(
        self, observation: Observation, candidates: Collection[str], own: Mapping[str, float]
    ) -> Self:
        """With what has come since the last look; `own` are tasks of the trial, by engine.

        Nothing is counted where one engine is not known, or is another process than before.
        """
        began_at = observation.at if self.began_at is None else self.began_at
        found = {e.target: Met.by(e, own.get(e.target, 0.0)) for e in observation.engines}
        met = {name: each for name, each in found.items() if each is not None}
        update: dict[str, object] = {"began_at": began_at, "met": met}
        if observation.at - began_at >= SETTLING_SECONDS and self._goes_on(met, found):
            arms = [0.0, 0.0]
            for name, each in met.items():
                arms[name in candidates] += each.came - self.met[name].came
            stable, candidate = self.stable + arms[0], self.candidate + arms[1]
            part = 0.5 if candidate + stable > MOST_REQUESTS else 1.0
            update |= {"candidate": part * candidate, "stable": part * stable}
        return self.model_copy(update=update)

    def _goes_on(self, met: Mapping[str, Met], found: Collection[str]) -> bool:
        """Whether all engines are the same processes as at the last look."""
        return self.met.keys() == met.keys() == set(found) and all(
            each.finished >= self.met[name].finished for name, each in met.items()
        )

    def of(self, weight: int) -> Split:
        """What is to be compared with a weight in percent."""
        # Metrics of one scrape may be of two moments: a request may be missed for one look.
        return Split(max(0.0, self.candidate), max(0.0, self.stable), weight / 100)
