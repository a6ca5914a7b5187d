"""The verdict on a change from all that was compared; pure, and ready at every look.

Roll back where any probe or guard is shown to be beyond its bound: the accepted chance of a false
rollback is shared out among them. Promote where every quality criterion is shown to be within its
bound and the gain is shown too: since all of them must hold, each is tested at the full rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kvserving_tuner.errors import JudgeError
from kvserving_tuner.judge.comparison import Comparison, Finding
from kvserving_tuner.judge.sample_ratio import sample_ratio_e_value

SPLIT_ALPHA: Final = 0.001
"""Accepted chance of calling a right split wrong, which holds the trial."""

SPLIT_TOLERANCE: Final = 0.02
"""Distance from the promised share that changes nothing of what arms make of their requests."""


class Outcome(StrEnum):
    """What follows from the evidence."""

    CONTINUE = "Continue"
    PROMOTE = "Promote"
    ROLL_BACK = "RollBack"
    INCONCLUSIVE = "Inconclusive"


class Cause(StrEnum):
    """Why."""

    HARD_STOP = "HardStop"
    QUALITY_DROP = "QualityDrop"
    GUARD_VIOLATED = "GuardViolated"
    SPLIT_MISMATCH = "SplitMismatch"
    WITHIN_BOUNDS = "WithinBounds"
    NO_GAIN = "NoGain"
    QUALITY_NOT_SHOWN = "QualityNotShown"
    MORE_EVIDENCE_NEEDED = "MoreEvidenceNeeded"


class HardStop(StrEnum):
    """What needs no statistics."""

    CRASHED = "Crashed"
    OUT_OF_MEMORY = "OutOfMemory"
    NOT_A_NUMBER = "NotANumber"
    GARBAGE = "Garbage"
    NO_TOKENS = "NoTokens"


@dataclass(frozen=True)
class Rules:
    """Error rates and sizes of a trial."""

    false_rollback: float = 0.01
    """Accepted chance of rolling back a change that is within every bound."""
    false_promotion: float = 0.05
    """Accepted chance of promoting a change that is beyond a bound or gains nothing."""
    min_samples: int = 30
    """Pairs of each quality criterion before any verdict by statistics."""
    max_samples: int = 4000
    """Pairs after which what is still open stays so."""

    def __post_init__(self) -> None:
        for name in ("false_rollback", "false_promotion"):
            rate = getattr(self, name)
            if not 0 < rate < 1:
                raise JudgeError(f"{name}: expected a number between 0 and 1, got {rate}")
        if not 0 < self.min_samples <= self.max_samples:
            raise JudgeError(
                f"min_samples: expected 1 to max_samples ({self.max_samples}), "
                f"got {self.min_samples}"
            )


@dataclass(frozen=True)
class Split:
    """Requests that the arms got, and the share promised to the candidate."""

    candidate: float
    stable: float
    candidate_share: float

    @property
    def mismatch(self) -> str:
        """What shows that the promise is not kept; empty while nothing does."""
        evidence = sample_ratio_e_value(
            self.candidate, self.stable, self.candidate_share, SPLIT_TOLERANCE
        )
        if evidence < 1 / SPLIT_ALPHA:
            return ""
        seen = self.candidate / (self.candidate + self.stable)
        return (
            f"traffic is not what was promised: the candidate got {100 * seen:.0f} % of the "
            f"requests instead of {100 * self.candidate_share:.0f} %; arms cannot be compared"
        )


@dataclass(frozen=True)
class Trial:
    """Everything a verdict is made of."""

    quality: Mapping[str, Comparison]
    """By probe and stratum."""
    guards: Mapping[str, Comparison]
    watched: Mapping[str, Comparison] = field(default_factory=dict)
    """Quality too, whose fall counts, but which need not be shown to be kept."""
    gain: Comparison | None = None
    """Missing where the change need not gain anything, as one that a person asked for."""
    split: Split | None = None
    hard_stop: HardStop | None = None


@dataclass(frozen=True)
class Verdict:
    """What follows, why, and the finding that decided."""

    outcome: Outcome
    cause: Cause
    message: str
    finding: Finding | None = None


def judge(trial: Trial, rules: Rules) -> Verdict:
    """Give the verdict of a trial at this moment."""
    if trial.hard_stop is not None:
        message = f"the candidate is stopped: {trial.hard_stop}"
        return Verdict(Outcome.ROLL_BACK, Cause.HARD_STOP, message)
    harmful = _harmful(trial, rules)
    if harmful is not None:
        return harmful
    if trial.split is not None and trial.split.mismatch:
        # No fault of the change: it waits until requests are shared out as they should be.
        return Verdict(Outcome.CONTINUE, Cause.SPLIT_MISMATCH, trial.split.mismatch)
    return _promotable(trial, rules)


def _harmful(trial: Trial, rules: Rules) -> Verdict | None:
    quality = {**trial.watched, **trial.quality}
    alpha = rules.false_rollback / max(1, len(quality) + len(trial.guards))
    for cause, found in (
        (Cause.QUALITY_DROP, quality), (Cause.GUARD_VIOLATED, trial.guards),
    ):  # fmt: skip
        least = rules.min_samples if cause is Cause.QUALITY_DROP else 1
        worst = [c for c in found.values() if c.count >= least and c.is_harmful(alpha)]
        if worst:
            finding = max(worst, key=lambda c: c.harm.log_peak).finding()
            return Verdict(Outcome.ROLL_BACK, cause, str(finding), finding)
    return None


def _promotable(trial: Trial, rules: Rules) -> Verdict:
    if not trial.quality:
        message = "no probe has measured quality, and nothing is promoted without it"
        return Verdict(Outcome.INCONCLUSIVE, Cause.QUALITY_NOT_SHOWN, message)
    open_quality = [
        comparison
        for comparison in trial.quality.values()
        if comparison.count < rules.min_samples or not comparison.is_safe(rules.false_promotion)
    ]
    if open_quality:
        finding = _least_sure(open_quality).finding()
        if min(comparison.count for comparison in open_quality) >= rules.max_samples:
            return Verdict(Outcome.INCONCLUSIVE, Cause.QUALITY_NOT_SHOWN, str(finding), finding)
        return Verdict(Outcome.CONTINUE, Cause.MORE_EVIDENCE_NEEDED, str(finding), finding)
    if trial.gain is not None and not trial.gain.is_safe(rules.false_promotion):
        finding = trial.gain.finding()
        # What is shown to be slower need not be waited for, and nothing is rolled back for it.
        is_over = trial.gain.is_harmful(rules.false_promotion)
        is_over |= trial.gain.count >= rules.max_samples
        outcome = Outcome.INCONCLUSIVE if is_over else Outcome.CONTINUE
        return Verdict(outcome, Cause.NO_GAIN, str(finding), finding)
    finding = (trial.gain or _least_sure(list(trial.quality.values()))).finding()
    message = f"every bound is shown to be kept; {finding}"
    return Verdict(Outcome.PROMOTE, Cause.WITHIN_BOUNDS, message, finding)


def _least_sure(comparisons: Sequence[Comparison]) -> Comparison:
    return min(comparisons, key=lambda comparison: comparison.safety.log_peak)
