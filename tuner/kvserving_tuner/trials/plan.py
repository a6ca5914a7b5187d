"""What a trial is going to do, fixed when it begins."""

import math
from enum import StrEnum
from functools import cached_property
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from kvserving_tuner.judge import (
    Comparison,
    Criterion,
    Rules,
    floor,
    goodput_gain,
    goodput_loss,
    least_to_show,
    likelihood,
    relative_rise,
    share_rise,
    target_missed,
    task,
)
from kvserving_tuner.judge.shares import most_of
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.settings import Slo


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


TARGETS: Final = {Guard.TTFT: "TTFTTarget", Guard.TPOT: "TPOTTarget"}
"""Names of the evidence on targets of latency, where loads are too unlike to compare latencies."""


class Gain(StrEnum):
    """What a change that nobody asked for has to gain before it may stay."""

    FASTER = "Faster"
    """More goodput than without it."""
    CAPACITY = "Capacity"
    """Room in the KV cache: goodput may be all but the same."""

    @property
    def least_ratio(self) -> float:
        """Goodput with the change over goodput without it that has to be exceeded."""
        return 1.0 if self is Gain.FASTER else 0.99


GOODPUT_GAIN: Final = "GoodputGain"
"""Name of the evidence on gain."""


class Plan(Frozen):
    """Steps, clocks and bounds of one trial."""

    steps: tuple[int, ...] = (5, 25, 50)
    """Share of the pods that have the candidate's settings in each step, in percent, rising."""
    weighted: bool = False
    """Whether steps are shares of the requests: each is one of its own, with the same pods too."""
    restarts: bool = False
    """Whether pods are started for the change, so that those without it are not to be had back at
    once: one of them stays to the end, whatever a step says."""
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
    likelihood: bool = True
    """Whether likelihoods tell what the change costs, in which eviction plays no part."""
    screened: bool = True
    """Whether they are scored before any pod has the change too, and not only afterwards."""
    tasks: tuple[Probe, ...] = ()
    """Task probes that are asked of pods with the change."""
    floors: dict[Probe, float] = {}
    """Least mean grade of a task probe, in percent."""
    max_drop_percent: float = 2
    false_rollback: float = 0.01
    min_samples: int = 30
    max_samples: int = 4000
    guards: dict[Guard, float] = {}
    """Largest accepted rise (of throughput: fall) in percent, of errors in percentage points; a
    guard that is missing is off."""

    gain: Gain | None = None
    """What has to be gained; None for a change that a person asked for."""
    gain_seconds: float = 14_400
    """Most time that the last step waits for the gain to show: 240 blocks of a minute show 5 %
    where blocks of equal engines differ by a tenth (`benchmarks/judge_error_rates.py`)."""
    slo: Slo = Slo()
    """Targets within which a request counts towards goodput, and which a change has to keep."""

    def pods(self, step: int, ready: int) -> int:
        """Pods that have the candidate's settings in a step, of so many that are ready."""
        share = math.ceil(ready * self.steps[step] / 100)
        # Something has to be compared with, unless the step says otherwise or there is only one.
        all_of_them = self.steps[step] == 100 and not self.restarts
        most = ready if all_of_them or ready == 1 else ready - 1
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

    def is_kept(self, comparison: Comparison) -> bool:
        """Whether a criterion is shown to be kept; one of quality needs its number of samples."""
        of_blocks = comparison.criterion.name in {*self.guards, GOODPUT_GAIN}
        enough = of_blocks or comparison.count >= self.min_samples
        return enough and comparison.is_safe(self.rules.false_promotion)

    def quality(self, name: str) -> Criterion:
        """Criterion of a likelihood probe."""
        return likelihood(name, self.max_drop_percent)

    def goodput(self) -> Criterion | None:
        """Criterion of the gain; None where none is asked for."""
        return None if self.gain is None else goodput_gain(GOODPUT_GAIN, self.gain.least_ratio)

    @property
    def guarding(self) -> frozenset[str]:
        """Names of the evidence that guards can have."""
        targets = {name for guard, name in TARGETS.items() if guard in self.guards}
        return frozenset({*self.guards, *targets})

    @property
    def most_failed(self) -> float:
        """Share of failed requests of a block that counts at most."""
        return most_of(self.guards.get(Guard.ERRORS, 0.0) / 100)

    def of_blocks(self, name: str) -> Criterion | None:
        """Criterion of a number that blocks of time have; None where it is not judged."""
        if name == GOODPUT_GAIN:
            return self.goodput()
        if name not in self.guarding:
            return None
        if name in TARGETS.values():
            return target_missed(name, self.slo.missed_share)
        return self.guard(Guard(name))

    def task(self, name: str) -> Criterion:
        """Criterion of a task probe."""
        return task(name, self.max_drop_percent)

    def floor(self, name: str, probe: Probe) -> Criterion:
        """Criterion of a floor that is set; KeyError for one that is not."""
        return floor(name, self.floors[probe])

    @cached_property
    def least_pairs(self) -> int:
        """Pairs of a task probe that show a change to be within the bound where none gets worse."""
        if self.max_drop_percent <= 0:
            # Nothing but a gain is accepted, and how many pairs show one is up to its size.
            return self.max_samples
        return least_to_show(self.task(""), self.rules.false_promotion)

    def guard(self, guard: Guard) -> Criterion:
        """Criterion of a guard that is on; KeyError for one that is off."""
        percent = self.guards[guard]
        if guard is Guard.ERRORS:
            return share_rise(guard.value, percent / 100)
        if guard is Guard.THROUGHPUT:
            return goodput_loss(guard.value, 1 - percent / 100)
        return relative_rise(guard.value, percent)
