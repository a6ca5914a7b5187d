"""Follows decisions of the tuner and trials from look to look, as spans without anybody's texts.

A decision is one trace: observe, diagnose, propose, act, read back. The trial that it asks for is
part of it; a trial that a person or an edit asked for is a trace of its own. Names of spans are few
and numbers are attributes. Messages are left out: they may quote what engines or people wrote.
"""

from dataclasses import dataclass
from typing import Final

from kvserving_operator.api.v1alpha1 import KVServingStatus
from kvserving_operator.exported import concluded
from kvserving_operator.looks import Look
from kvserving_operator.render.names import DECISION_ANNOTATION
from kvserving_operator.stages import Stage, StageName
from kvserving_operator.tracing.attributes import (
    change_of,
    common,
    evidence_of,
    identities,
    in_force,
    key_of,
    numbers,
    verdict_of,
)
from kvserving_operator.tracing.emitter import Attributes, Emitter, Identity
from kvserving_operator.trials.record import Record
from kvserving_operator.trials.turn import Outcome
from kvserving_operator.tuning import REJECTED
from kvserving_tuner.actuators.base import Outcome as Applied
from kvserving_tuner.decision import Action, Change, Decision
from kvserving_tuner.trials.progress import Conclusion, State, Verdict

Key = tuple[str, str]

_STEPS: Final = {
    State.PENDING: "wait",
    State.SCREENING: "screen",
    State.RUNNING: "trial step",
    State.APPROVAL: "approval",
    State.PROMOTING: "act",
    State.ROLLING_BACK: "act",
}
"""Span of the time that a trial spends in a state."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A trial under way: where it stands, and since when, in seconds since the epoch."""

    record: Record
    began: float
    since: float

    @property
    def place(self) -> tuple[State, int]:
        """State and step."""
        return self.record.progress.state, self.record.progress.step


@dataclass(frozen=True, slots=True)
class Acted:
    """A change that engines were told, and that they have not been asked about since."""

    decision: Identity
    change: Change


class DecisionTracer:
    """A watcher of looks."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._acted: dict[Key, Acted] = {}
        self._followed: dict[Key, Followed] = {}

    def looked(self, look: Look) -> None:
        """Tell of what has ended at this look."""
        self._read_back(look)
        if look.decision is not None:
            self._decision(look, look.decision)
        if look.facts.trial is not None:
            self._trial(look, look.facts.trial)

    def refused(self, namespace: str, name: str, status: KVServingStatus, now: float) -> None:
        """Tell nothing: no decision is taken where a spec cannot be read."""

    def forgotten(self, namespace: str, name: str) -> None:
        """Drop what was followed of a KVServing."""
        self._acted.pop((namespace, name), None)
        self._followed.pop((namespace, name), None)

    def _decision(self, look: Look, decision: Decision) -> None:
        identity, shared = Identity.of("decision", decision.id), common(look)
        stages = {stage.name: stage for stage in look.facts.turn.stages}
        decided = stages.get(StageName.DECIDE, Stage(StageName.DECIDE, decision.at, decision.at))
        diagnosis = {"kvserving.diagnosis": decision.diagnosis.kind.value}
        proposal = {
            "kvserving.action": decision.action.value,
            "kvserving.reason": decision.reason.value,
            **change_of(decision.change),
        }
        outcome = look.facts.turn.outcome
        failed = outcome in (REJECTED, Applied.FAILED.value)
        ended = {} if outcome is None else {"kvserving.outcome": outcome}
        parts = [each for each in stages.values() if each.name is not StageName.READ] or [decided]
        self._emitter.emit(
            "decision",
            min(each.start for each in parts),
            max(each.end for each in parts),
            {**shared, "kvserving.decision": decision.id, **diagnosis, **proposal, **ended},
            identity=identity,
            failed=failed,
        )
        observation, observed = look.facts.turn.observation, stages.get(StageName.OBSERVE)
        if observation is not None and observed is not None:
            seen = {
                "kvserving.engines": len(observation.engines),
                "kvserving.problems": len(observation.blocking()),
            }
            self._part("observe", observed, {**shared, **seen}, identity)
        # One computation gives both: each has its time.
        found = numbers("kvserving.evidence", decision.diagnosis.evidence)
        self._part("diagnose", decided, {**shared, **diagnosis, **found}, identity)
        found = numbers("kvserving.number", decision.numbers)
        self._part("propose", decided, {**shared, **proposal, **found}, identity)
        acted = stages.get(StageName.ACT)
        if acted is not None and decision.change is not None:
            told = {**shared, **change_of(decision.change), **ended}
            self._part("act", acted, told, identity, failed=failed)
            if not failed and decision.action is Action.CHANGE:
                self._acted[key_of(look)] = Acted(identity, decision.change)

    def _read_back(self, look: Look) -> None:
        """What engines say of themselves at the first look after they were told."""
        acted = self._acted.get(key_of(look))
        read = next((s for s in look.facts.turn.stages if s.name is StageName.READ), None)
        states = look.facts.turn.readback.runtime
        if acted is None or read is None or not states:
            return
        del self._acted[key_of(look)]
        field = acted.change.knob.runtime_field
        have = [getattr(state.effective, field) for state in states.values()]
        agree = sum(value == acted.change.to_value for value in have)
        found = {"kvserving.engines": len(have), "kvserving.engines.agree": agree}
        attributes = {**common(look), **change_of(acted.change), **found}
        self._part("read back", read, attributes, acted.decision, failed=agree < len(have))

    def _trial(self, look: Look, outcome: Outcome) -> None:
        key, record, now = key_of(look), outcome.record, look.facts.now
        if record is None:
            self._followed.pop(key, None)
            return
        followed = self._followed.get(key)
        if followed is None or followed.record.name != record.name:
            before = record if outcome.before is None else outcome.before
            followed = Followed(before, record.progress.started_at or now, now)
        identity, parent = _belonging(look, outcome, record)
        shared = {**common(look), "kvserving.trial": record.name}
        left = followed.place
        if left != (record.progress.state, record.progress.step):
            self._left(followed, now, shared, identity)
            followed = Followed(record, followed.began, now)
        self._followed[key] = Followed(record, followed.began, followed.since)
        conclusion = concluded(outcome)
        if conclusion is not None:
            self._verdict(record, conclusion, now, shared, identity)
        if record.progress.state is State.FINISHED:
            del self._followed[key]
            if _STEPS.get(left[0]) == "act":
                found = {**shared, **in_force(look.status)}
                self._emitter.emit("read back", now, now, found, parent=identity)
            self._ended(record, followed.began, now, shared, identity, parent)

    def _left(self, followed: Followed, now: float, shared: Attributes, trial: Identity) -> None:
        """Tell of the state that a trial has left."""
        state, step = followed.place
        attributes: dict[str, str | int | float | bool] = {**shared, "kvserving.state": state.value}
        if state is State.RUNNING:
            progress, plan = followed.record.progress, followed.record.plan
            attributes |= {
                "kvserving.step": step,
                "kvserving.step.percent": plan.steps[step],
                "kvserving.step.requests": progress.step_requests,
                "kvserving.step.seconds": progress.step_seconds,
                "kvserving.engines": len(progress.candidates),
            }
        self._emitter.emit(_STEPS[state], followed.since, now, attributes, parent=trial)

    def _verdict(
        self,
        record: Record,
        conclusion: Conclusion,
        now: float,
        shared: Attributes,
        trial: Identity,
    ) -> None:
        self._emitter.emit(
            "verdict",
            now,
            now,
            {**shared, **verdict_of(conclusion)},
            parent=trial,
            events=tuple(evidence_of(record)),
        )

    def _ended(
        self,
        record: Record,
        began: float,
        now: float,
        shared: Attributes,
        trial: Identity,
        parent: Identity | None,
    ) -> None:
        conclusion = record.progress.conclusion
        attributes = {
            **shared,
            "kvserving.requested_by": record.requested_by.value,
            "kvserving.knob": record.field,
            "kvserving.from": str(record.stable),
            "kvserving.to": str(record.candidate),
            **({} if conclusion is None else verdict_of(conclusion)),
        }
        failed = conclusion is not None and conclusion.verdict is Verdict.FAILED
        self._emitter.emit(
            "trial", began, now, attributes, parent=parent, identity=trial, failed=failed
        )

    def _part(
        self,
        name: str,
        stage: Stage,
        attributes: Attributes,
        decision: Identity,
        failed: bool = False,
    ) -> None:
        self._emitter.emit(name, stage.start, stage.end, attributes, parent=decision, failed=failed)


def _belonging(look: Look, outcome: Outcome, record: Record) -> tuple[Identity, Identity | None]:
    """Identity of a trial's span, and of the decision that asked for it."""
    trial = next((t for t in outcome.found if t.metadata.name == record.name), None)
    uid = "" if trial is None else trial.metadata.uid
    decision = "" if trial is None else trial.metadata.annotations.get(DECISION_ANNOTATION, "")
    return identities(*key_of(look), record.name, uid, decision)
