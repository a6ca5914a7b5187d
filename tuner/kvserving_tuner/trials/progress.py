"""How far a trial has come: all that is kept of it between two looks, and after a restart."""

from collections.abc import Iterable
from enum import StrEnum
from typing import overload

from pydantic import Field

from kvserving_tuner.judge import Cause, Comparison, Criterion
from kvserving_tuner.probes.names import Probe
from kvserving_tuner.trials.alternation import Alternation
from kvserving_tuner.trials.plan import Frozen
from kvserving_tuner.trials.schedule import Schedule


class State(StrEnum):
    """Where a trial stands."""

    PENDING = "Pending"
    """Waits for engines that can be asked."""
    SCREENING = "Screening"
    """Probes score the change on engines that do not have it."""
    RUNNING = "Running"
    """Some pods have the change."""
    APPROVAL = "Approval"
    """The change passed and waits for a person."""
    PROMOTING = "Promoting"
    """Every pod gets the change."""
    ROLLING_BACK = "RollingBack"
    """No pod keeps the change."""
    FINISHED = "Finished"


class Verdict(StrEnum):
    """How a trial ended."""

    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"
    INCONCLUSIVE = "Inconclusive"
    VOID = "Void"
    FAILED = "Failed"


class End(StrEnum):
    """Why a trial ended, beside the causes of the judge."""

    SUPERSEDED = "Superseded"
    """The change is not wanted any more: the spec or the trial's owner asks for something else."""
    STALLED = "Stalled"
    """Evidence stayed away."""
    SETTINGS_REFUSED = "SettingsRefused"
    """An engine could not take the change."""
    NOT_OFFERED = "NotOffered"
    """No engine takes the change live."""
    NOT_SUPPORTED = "NotSupported"
    """Nothing here can judge the change."""
    SINGLE_REPLICA = "SingleReplica"
    """The policy refuses to try a change on the only pod, or nothing can be tried beside it."""
    START_FAILED = "StartFailed"
    """No engine came up with the change."""
    ASKED_FOR = "AskedFor"
    """A person ended it."""
    SET_EXHAUSTED = "ProbeSetExhausted"
    """Every prompt of the set was scored, and that was not enough."""
    SET_TOO_SHORT = "ProbeSetTooShort"
    """No prompt that the engines can take is longer than what eviction keeps."""


ACTIVE = frozenset({State.PENDING, State.SCREENING, State.RUNNING, State.APPROVAL})
"""States in which nothing is decided yet."""

SCREENED, SERVED = "Screened", "Served"
"""Kinds of evidence on quality: of engines that do not have the change yet, and that have it."""


class LeftOut(Frozen):
    """A probe that says nothing in this trial, and why."""

    reason: str
    """In one word."""
    message: str
    value: float | None = None
    """Mean grade in 16 bits, in percent, where that is the reason."""
    samples: int = 0


class Conclusion(Frozen):
    """How a trial ends, decided before the pods follow."""

    verdict: Verdict
    reason: Cause | End
    message: str
    to_fallback: bool = False
    """Whether quality fell, so that all pods go to the policy's fallback."""
    untried: bool = False
    """Whether every pod gets the change although it was not tried, as the policy has it."""

    @property
    def rejects(self) -> bool:
        """Whether the change itself was found wanting: by the judge, or by the engines."""
        by_judge = self.verdict is Verdict.ROLLED_BACK and self.reason is not End.ASKED_FOR
        return by_judge or self.reason in (End.SETTINGS_REFUSED, End.START_FAILED)


class Progress(Frozen):
    """State, clocks and evidence."""

    state: State = State.PENDING
    step: int = 0
    step_seconds: float = 0.0
    """Time that the candidate has served in this step."""
    step_requests: float = 0.0
    """Requests that the candidate has finished in this step."""
    quiet_seconds: float = 0.0
    """The part of its time in which it was not probed."""
    stalled_seconds: float = 0.0
    """Time without usable evidence, in one go."""
    looked_at: float | None = None
    started_at: float | None = None
    """When the candidate first served."""
    finished_at: float | None = None
    candidates: tuple[str, ...] = ()
    """Pods that are to have the change."""
    screened: int = 0
    """Prompts of the set that were scored before, and `served` after a pod had the change."""
    served: int = 0
    schedule: Schedule = Schedule()
    """When candidates are probed."""
    rested: bool = False
    """Whether candidates carry nothing over from blocks in which they had more to do than the
    others."""
    alternation: Alternation | None = None
    """Turns of a single engine; None where engines are compared with each other."""
    recorded: dict[int, float] = Field(default_factory=dict)
    """Grades of answers in 16 bits that were taken before any pod had the change, by task."""
    kept: dict[str, dict[int, float]] = Field(default_factory=dict)
    """Grades in 16 bits of tasks that were paired, by cell and place: for what follows a promotion.
    """
    tasks: int = 0
    """First task that was not asked of a pod with the change yet."""
    left_out: dict[str, LeftOut] = Field(default_factory=dict)
    """By criterion."""
    evidence: dict[str, Comparison] = Field(default_factory=dict)
    conclusion: Conclusion | None = None
    note: str = ""
    """What a trial that goes on waits for."""
    held: str = ""
    """Why evidence stays away, without numbers that move; empty where it comes."""

    def compared(self, criterion: Criterion, numbers: Iterable[float]) -> "Progress":
        """With further pairs or blocks of a criterion."""
        evidence = {**self.evidence, criterion.name: self.compared_by(criterion).add(numbers)}
        return self.model_copy(update={"evidence": evidence})

    @overload
    def compared_by(self, criterion: Criterion) -> Comparison: ...
    @overload
    def compared_by(self, criterion: None) -> None: ...
    def compared_by(self, criterion: Criterion | None) -> Comparison | None:
        """Evidence by a criterion, also before its first number; None for no criterion."""
        if criterion is None:
            return None
        return self.evidence.get(criterion.name) or Comparison.start(criterion)

    def quality(self, kind: str) -> dict[str, Comparison]:
        """Evidence on quality of a kind."""
        return {name: found for name, found in self.evidence.items() if name.startswith(kind)}

    def likelihood(self, kind: str) -> dict[str, Comparison]:
        """The part of it that likelihoods give."""
        return self.quality(f"{kind}{Probe.LIKELIHOOD}")

    def leaves_out(self, name: str, entry: LeftOut) -> "Progress":
        """Without a criterion, for a reason that is told."""
        left_out = {**self.left_out, name: entry}
        return self.forgets(name).model_copy(update={"left_out": left_out})

    def takes_in(self, name: str) -> "Progress":
        """With a criterion that was left out."""
        left_out = {other: entry for other, entry in self.left_out.items() if other != name}
        return self.model_copy(update={"left_out": left_out})

    def forgets(self, name: str) -> "Progress":
        """Without what was seen of a criterion."""
        evidence = {other: found for other, found in self.evidence.items() if other != name}
        return self.model_copy(update={"evidence": evidence})

    def keeps(self, cell: str, place: int, grade: float, most: int) -> "Progress":
        """With the grade of an answer in 16 bits, unless there are enough of the cell."""
        grades = self.kept.get(cell, {})
        if len(grades) >= most:
            return self
        return self.model_copy(update={"kept": {**self.kept, cell: {**grades, place: grade}}})

    def becomes(self, state: State, **update: object) -> "Progress":
        """In another state."""
        return self.model_copy(update={"state": state, "note": "", "held": "", **update})

    def ends(self, conclusion: Conclusion) -> "Progress":
        """On its way to an end; nothing has to be put back where no pod was touched."""
        if conclusion.verdict is Verdict.PROMOTED:
            return self.becomes(State.PROMOTING, conclusion=conclusion)
        return self.becomes(State.ROLLING_BACK, conclusion=conclusion, candidates=())
