"""What is remembered of a trial's share, and what candidates were measured to get."""

from collections.abc import Collection, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from kvserving_operator.traffic.split import FINISHED_TOTAL, SplitCount
from kvserving_operator.trials.record import Record
from kvserving_tuner.judge import Split
from kvserving_tuner.observation import Observation
from kvserving_tuner.readings import Known

SHOWN_AGAIN = 1.25
"""Growth of the number of requests after which a measured share is shown anew."""
PASSING = {"totals", "candidate", "stable", "shown_percent", "shown_requests", "count"}
"""Parts that every look moves; lost, the count begins at the next look."""


class TrafficState(BaseModel):
    """Kept in the operator's memory."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    attached: bool = False
    """Whether there may be a route and Services of the tracks, which go with `spec.routing`."""
    routed: bool = False
    """Whether a gateway's route shared the requests out at the last look."""
    trial: str = ""
    step: int = 0
    raised: bool = False
    """Whether this step's share was raised to the candidates' part of the pods."""
    weight: int = 0
    """Percent in force since the counts began."""
    totals: Mapping[str, float] = Field(default_factory=dict)
    """Requests that each engine had finished at the last look."""
    candidate: float = 0.0
    """Requests that candidates have finished under this weight."""
    stable: float = 0.0
    count: SplitCount = SplitCount()
    """Requests that came under this weight."""
    sessions_kept: bool = False
    """Whether a session's requests stay together, so that few sessions may be many requests."""
    shown_percent: float | None = None
    shown_requests: float = 0.0

    def of(self, record: Record | None) -> Self:
        """For the step of a trial: what was raised for another one counts no more."""
        trial = "" if record is None else record.name
        step = 0 if record is None else record.progress.step
        if (trial, step) == (self.trial, self.step):
            return self
        return self.model_copy(update={"trial": trial, "step": step, "raised": False})

    def under(self, weight: int) -> Self:
        """With a weight in force: the counts are about one weight."""
        if weight == self.weight:
            return self
        fresh = {name: type(self).model_fields[name].get_default(call_default_factory=True)
                 for name in PASSING}  # fmt: skip
        return self.model_copy(update={"weight": weight, **fresh})

    @property
    def split(self) -> Split | None:
        """Requests of a trial's two sides, where a weight promises what share each of them gets.

        Where sessions are kept it promises shares of sessions, and a few of them may have most of
        the requests.
        """
        if not self.routed or not self.weight or self.sessions_kept:
            return None
        return self.count.of(self.weight)

    @property
    def mismatch(self) -> str:
        """What shows that the weight is not what candidates get; empty while nothing does."""
        return "" if self.split is None else self.split.mismatch

    def counted(
        self,
        observation: Observation | None,
        candidates: Collection[str],
        own: Mapping[str, float] | None = None,
    ) -> Self:
        """With the requests that engines have got since the last look; `own` are a trial's tasks.

        The share that is shown is of those that ended: a long one under the weight after its own.
        """
        if observation is None or not self.weight:
            return self
        totals, mine, others = dict[str, float](), self.candidate, self.stable
        for engine in observation.engines:
            total = engine.totals.get(FINISHED_TOTAL)
            if not isinstance(total, Known):
                continue
            totals[engine.target] = total.value
            # A counter that went back is that of another process.
            new = max(0.0, total.value - self.totals.get(engine.target, total.value))
            if engine.target in candidates:
                mine += new
            else:
                others += new
        update: dict[str, Any] = {"totals": totals, "candidate": mine, "stable": others}
        update["count"] = self.count.counted(observation, candidates, own or {})
        requests = mine + others
        if requests >= max(1.0, SHOWN_AGAIN * self.shown_requests):
            update |= {"shown_percent": 100 * mine / requests, "shown_requests": requests}
        return self.model_copy(update=update)

    def lasting(self) -> Any:
        """What is worth a write when it changes."""
        return self.model_dump(exclude=PASSING)
