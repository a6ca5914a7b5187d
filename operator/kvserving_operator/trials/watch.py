"""After a promotion the gate goes on, one prompt a minute, and goes back where quality falls."""

import math
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from kvserving_operator.live import KVSettings
from kvserving_operator.trials.probing import Pair
from kvserving_tuner.judge import Cause, Comparison, Outcome, Trial, judge
from kvserving_tuner.trials.plan import Plan

WATCHED = "Watched"
"""Kind of evidence: of engines whose change was promoted before."""
SECONDS_BETWEEN = 60.0
"""A pair of probes of a few hundred tokens takes seconds: a few percent of one engine's time."""


class Watch(BaseModel):
    """What was promoted, and what prompts have said since."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    trial: str
    settings: KVSettings
    fallback: KVSettings
    plan: Plan
    reject_for_seconds: float
    number: int = 0
    """Prompts scored so far."""
    asked_at: float = 0.0
    evidence: Mapping[str, Comparison] = Field(default_factory=dict)
    broken: bool = False
    """Whether a prompt had likelihoods that are no numbers."""

    def heard(self, pairs: Iterable[Pair]) -> "Watch":
        """With pairs that were scored since the last look."""
        evidence, number = dict(self.evidence), self.number
        for pair in pairs:
            request = pair.request
            if pair.error or (request.trial, request.kind) != (self.trial, WATCHED):
                continue
            if math.isnan(pair.rise):
                return self.model_copy(update={"broken": True})
            criterion = self.plan.quality(f"{WATCHED}Likelihood{pair.stratum}")
            before = evidence.get(criterion.name) or Comparison.start(criterion)
            evidence[criterion.name] = before.add([pair.rise])
            number += 1
        return self.model_copy(update={"evidence": evidence, "number": number})

    def asks(self, now: float) -> bool:
        """Whether the next prompt is due."""
        return now - self.asked_at >= SECONDS_BETWEEN

    def regression(self) -> str:
        """What shows that quality fell; empty while nothing does."""
        if self.broken:
            return "the engine gives likelihoods that are no numbers"
        verdict = judge(Trial(self.evidence, {}), self.plan.rules)
        fell = verdict.outcome is Outcome.ROLL_BACK and verdict.cause is Cause.QUALITY_DROP
        return verdict.message if fell else ""
