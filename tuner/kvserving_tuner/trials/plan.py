"""What a trial is going to do, fixed when it begins."""

import math
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict

from kvserving_tuner.judge import (
    Criterion,
    Rules,
    goodput_loss,
    likelihood,
    relative_rise,
    share_rise,
)


class Frozen(BaseModel):
    """Plain values that are kept between turns."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class OnStall(StrEnum):
    """What happens when evidence stays away."""

    ROLLBACK = "Rollback"
    HOLD = "Hold"


class Guard(StrEnum):
    """What a change may cost in service."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    ERRORS = "Errors"
    PREEMPTIONS = "Preemptions"
    THROUGHPUT = "Throughput"


class Plan(Frozen):
    """Steps, clocks and bounds of one trial."""

    steps: tuple[int, ...] = (5, 25, 50)
    """Share of the pods that have the candidate's settings in each step, in percent, rising."""
    weighted: bool = False
    """Whether steps are shares of the requests: each is one of its own, with the same pods too."""
    min_requests: int = 100
    """Requests that the candidate must finish in each step."""
    min_seconds: float = 300
    """Shortest time of a step."""
    stall_seconds: float = 900
    """Time without usable evidence after which `on_stall` applies."""
    on_stall: OnStall = OnStall.HOLD
    manual: bool = False
    """Whether a person has to approve of a change that passed."""
    single_replica: bool = True
    """Whether a service with one pod may switch it in place."""
    screened: bool = True
    """Whether probes can score the change before any pod has it."""
    max_drop_percent: float = 2
    false_rollback: float = 0.01
    min_samples: int = 30
    max_samples: int = 4000
    guards: dict[Guard, float] = {}
    """Largest accepted rise (of throughput: fall) in percent; a guard that is missing is off."""

    def pods(self, step: int, ready: int) -> int:
        """Pods that have the candidate's settings in a step, of so many that are ready."""
        share = math.ceil(ready * self.steps[step] / 100)
        # Something has to be compared with, unless the step says otherwise or there is only one.
        most = ready if self.steps[step] == 100 or ready == 1 else ready - 1
        return min(max(1, share), most)

    def next_step(self, step: int, ready: int) -> int | None:
        """The next step that gives the change to more pods, or by weights to more requests."""
        later = range(step + 1, len(self.steps))
        have = self.pods(step, ready)
        by_weight = self.weighted and have < ready
        return next(
            (number for number in later if by_weight or self.pods(number, ready) > have), None
        )

    def with_weights(self) -> Self:
        """The plan where a route gives each step its share of the requests.

        How many requests a candidate serves then says nothing about it: the route decides that.
        """
        guards = {guard: at for guard, at in self.guards.items() if guard is not Guard.THROUGHPUT}
        return self.model_copy(update={"weighted": True, "guards": guards})

    @property
    def rules(self) -> Rules:
        """Error rates of each of the two judgements, before and after a pod has the change."""
        return Rules(
            false_rollback=self.false_rollback / (2 if self.screened else 1),
            min_samples=self.min_samples,
            max_samples=self.max_samples,
        )

    def quality(self, name: str) -> Criterion:
        """Criterion of a likelihood probe."""
        return likelihood(name, self.max_drop_percent)

    def guard(self, guard: Guard) -> Criterion:
        """Criterion of a guard that is on; KeyError for one that is off."""
        percent = self.guards[guard]
        if guard is Guard.ERRORS:
            return share_rise(guard.value, percent / 100)
        if guard is Guard.THROUGHPUT:
            return goodput_loss(guard.value, 1 - percent / 100)
        return relative_rise(guard.value, percent)
